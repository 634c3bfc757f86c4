"""The command line, called as a user types it."""

from unittest.mock import patch

from typer.testing import CliRunner

from mpcvit.cli import app


def invoke(*arguments, code=0):
    """Run a command; lines of progress, which a slow machine would add, are left out."""
    with patch("mpcvit.report.live.LINE_EVERY_S", 3600.0):
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result
