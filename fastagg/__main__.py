"""Runs the ``fastagg`` command, for ``python -m fastagg``."""

from fastagg.cli import main

if __name__ == "__main__":
    main()
