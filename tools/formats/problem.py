"""An error whose text is for the user."""


class Problem(Exception):
    """What is wrong, and what to do about it."""
