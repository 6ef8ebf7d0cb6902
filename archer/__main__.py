"""`python -m archer`: the `archer` command, where its script is not on the path."""

from archer.cli import main

if __name__ == "__main__":
    main()
