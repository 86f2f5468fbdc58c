"""`python -m dcpstream`: the command line, where its script is not on the path."""

from dcpstream.cli import main

if __name__ == "__main__":
    main()
