"""The memory of a share that names none is set in words, and shown in words that read back."""

import pytest

from deviceplugin.errors import ParseError
from deviceplugin.model.share_memory import ShareMemory, parse_share_memory


@pytest.mark.parametrize(
    ("text", "expected", "shown"),
    [
        ("proportional", ShareMemory(), "proportional"),
        (" OFF ", ShareMemory(proportional=False), "off"),
        ("16", ShareMemory(proportional=False, blocks=16), "16"),
    ],
)
def test_it_is_set_in_words(text: str, expected: ShareMemory, shown: str) -> None:
    assert parse_share_memory(text) == expected
    assert str(expected) == shown
    assert parse_share_memory(shown) == expected


@pytest.mark.parametrize("text", ["", "0", "-1", "some", "99999999", "1.5", "²"])
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(ParseError, match="proportional, off or a number"):
        parse_share_memory(text)
