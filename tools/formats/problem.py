"""An error whose text is for the user."""


class Problem(Exception):
    """Says what is wrong and what to do about it."""
