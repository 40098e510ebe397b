"""`python -m pixelis` is the command line."""

from pixelis.cli import main

if __name__ == "__main__":
    main()
