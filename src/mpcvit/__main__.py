"""`mpcvit`, and `python -m mpcvit`."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C ends it in silence even before it has begun."""
    try:
        from mpcvit.cli import main as run_command
    except KeyboardInterrupt:
        sys.exit(130)
    run_command()


if __name__ == "__main__":
    main()
