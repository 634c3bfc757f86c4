"""A client as a process: reads its task as a line of JSON, and prints a line for each step.

It may bring the emulated line that it reaches the server through.
"""

import contextlib
import json
import sys
import time

import numpy as np

import mpcvit
from mpcvit.artifacts.profile import NetworkLink
from mpcvit.errors import UserError
from mpcvit.secure.parties.wan import Relay, Route


def main() -> None:
    task = json.loads(sys.argv[1])
    pixels = np.asarray(task["pixels"], np.uint8)
    with contextlib.ExitStack() as stack:
        server = task["server"]
        if task["network"]:
            route = Route(dialler="client", dialled="server", target=server)
            relay = stack.enter_context(Relay(NetworkLink(**task["network"]), [route]))
            server = relay.addresses[route]
        say(what="loaded")
        sys.stdin.readline()
        started = time.monotonic()
        try:
            result = mpcvit.predict(
                pixels,
                server=server,
                tls=task["tls"],
                progress=lambda what, done, total: say(what=what, done=done),
                **task["options"],
            )
        except UserError as error:
            say(what="failed", error=str(error))
        else:
            seconds = time.monotonic() - started
            say(what="answered", logits=result.logits.tolist(), seconds=seconds)


def say(**step: object) -> None:
    print(json.dumps(step), flush=True)


if __name__ == "__main__":
    main()
