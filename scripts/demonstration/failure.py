"""How the demo ends when something is not as promised: one sentence, exit 1."""

from tests.fakes.program import ProgramFailureError
from tests.fakes.scheduler import NoAnswerError


class DemoError(Exception):
    """The message is complete and fit for a user."""


TROUBLE = (DemoError, ProgramFailureError, NoAnswerError)
