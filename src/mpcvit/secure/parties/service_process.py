"""A process that serves this one: it says where it is, and ends at the latest with this one."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, TypeVar

from mpcvit.secure.errors import PartyError

Own = TypeVar("Own", bound="ServiceProcess")


class ServiceProcess:
    """Starts a module as a process, and takes its first line, JSON, as its answer.

    `request` is written to its standard input, whose end it takes as its own.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        what: str,
        request: Any = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if request is not None:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            self.close()
            raise PartyError(f"{what} could not be started")
        self.answer = json.loads(line)

    def close(self) -> None:
        """End it at once, and with it every connection it has."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def __enter__(self: Own) -> Own:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
