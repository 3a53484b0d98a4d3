"""``python -m fastagg`` is the ``fastagg`` command."""

from fastagg.cli import main

if __name__ == "__main__":
    main()
