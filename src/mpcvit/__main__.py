"""`python -m mpcvit`."""

from mpcvit.cli import main

main()
