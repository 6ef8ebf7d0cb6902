"""The one error type that a user is meant to read."""


class ArcherError(Exception):
    """A problem the user can fix: says what was wrong, what was expected and what to do.

    The command line prints the message without a traceback and exits with code 2.
    """
