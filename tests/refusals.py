"""The sentences of refusals, for tests that compare many of them at once."""

from collections.abc import Callable
from typing import ParamSpec

from deviceplugin.errors import VcudaError

P = ParamSpec("P")


def refusal(error: type[VcudaError], call: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> str:
    """The message of the error that the call ends in, empty where it ends in none; another exception fails the test."""
    try:
        call(*args, **kwargs)
    except error as refused:
        return refused.message
    return ""
