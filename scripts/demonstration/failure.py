"""How the demo ends when something is not as promised: one sentence, exit 1."""

from sandbox.program import ProgramFailureError
from sandbox.scheduler import NoAnswerError


class DemoError(Exception):
    """The message is complete and fit for a user."""


TROUBLE = (DemoError, ProgramFailureError, NoAnswerError)
