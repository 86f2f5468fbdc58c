"""`python -m lab.bench`."""

from lab.bench.run import main

if __name__ == "__main__":
    main()
