"""``python -m rlhfless`` is the command line."""

from rlhfless.cli import main

if __name__ == "__main__":
    main()
