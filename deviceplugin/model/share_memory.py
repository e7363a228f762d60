"""The memory of a share that requests none.

In: the word of the operator. Out: a frozen value, or a ParseError that lists the words. Not here: the calculation.
"""

from dataclasses import dataclass

from deviceplugin.errors import ParseError

PROPORTIONAL = "proportional"
OFF = "off"


@dataclass(frozen=True, slots=True)
class ShareMemory:
    """The same fraction of the smallest known GPU, else `blocks` of each GPU, else (0) nothing."""

    proportional: bool = True
    blocks: int = 0

    def __str__(self) -> str:
        return PROPORTIONAL if self.proportional else str(self.blocks or OFF)


def parse_share_memory(text: str) -> ShareMemory:
    """`proportional`, `off`, or a number of blocks for each GPU of the share."""
    word = text.strip().lower()
    if word == PROPORTIONAL:
        return ShareMemory()
    if word == OFF:
        return ShareMemory(proportional=False)
    if not (word.isascii() and word.isdigit() and len(word) <= 6 and int(word)):
        raise ParseError(
            f"{text[:40]!r} is not a memory size for a share; write {PROPORTIONAL}, {OFF} or a number of blocks"
        )
    return ShareMemory(proportional=False, blocks=int(word))
