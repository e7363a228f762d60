"""How the demo ends when something is not as promised: one sentence, exit 1."""


class DemoError(Exception):
    """The message is complete and fit for a user."""
