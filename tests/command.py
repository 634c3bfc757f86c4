"""The command line, called as a user types it."""

from typer.testing import CliRunner

from mpcvit.cli import app


def invoke(*arguments, code=0):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result
