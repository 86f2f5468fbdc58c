"""`python -m dcpstream.cli`, the same as `dcpstream`."""

from dcpstream.cli import main

if __name__ == "__main__":
    main()
