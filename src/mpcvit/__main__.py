"""`mpcvit`, and `python -m mpcvit`."""

import os
import signal
import sys
import threading
from typing import Any

_AGAIN_S = 0.1


def main() -> None:
    """Run the command line; Ctrl-C ends it in silence even before it has begun.

    SIGTERM ends it the same way, so that nothing is left behind and the other side learns of it.
    """
    sys.unraisablehook = _interrupt_again
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        from mpcvit.cli import main as run_command

        run_command()
    except KeyboardInterrupt:
        sys.exit(130)


def _interrupt_again(lost: Any) -> None:
    """Repeat an interrupt that fell into a destructor, where Python loses it."""
    if not issubclass(lost.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(lost)
        return
    again = threading.Timer(_AGAIN_S, os.kill, (os.getpid(), signal.SIGINT))
    again.daemon = True
    again.start()


if __name__ == "__main__":
    main()
