"""A promise from what was found wrong: it holds where nothing was."""

from collections.abc import Sequence

from scripts.demonstration.document import Promise


def promised(text: str, wrong: Sequence[str], found: str) -> Promise:
    """`found` is what is said where it holds."""
    return Promise(text, held=not wrong, found="; ".join(wrong) if wrong else found)
