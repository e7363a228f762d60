"""The memory of a share that names none is set in words, and shown in words that read back."""

from deviceplugin.errors import ParseError
from deviceplugin.model.units import ShareMemory, parse_share_memory
from tests.refusals import refusal


def test_it_is_set_in_words() -> None:
    expected = {
        "proportional": ShareMemory(),
        " OFF ": ShareMemory(proportional=False),
        "16": ShareMemory(proportional=False, blocks=16),
    }
    assert {text: parse_share_memory(text) for text in expected} == expected
    assert [str(each) for each in expected.values()] == ["proportional", "off", "16"]
    assert [parse_share_memory(str(each)) for each in expected.values()] == list(expected.values())


def test_other_words_are_refused() -> None:
    said = [
        (text, refusal(ParseError, parse_share_memory, text))
        for text in ["", "0", "-1", "some", "99999999", "1.5", "²"]
    ]
    assert [each for each in said if "proportional, off or a number" not in each[1]] == []
