"""Quantities are whole numbers or refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.errors import ParseError
from deviceplugin.kube.structs import parse_quantity


def test_a_quantity_is_the_number_that_kubernetes_reads(subtests: pytest.Subtests) -> None:
    for text, number in [
        ("50", 50),
        (50, 50),
        ("0", 0),
        ("+7", 7),
        ("-7", -7),
        ("1k", 1000),
        ("1Ki", 1024),
        ("2e3", 2000),
        ("2E3", 2000),
        ("1E", 10**18),
        ("1.5k", 1500),
        ("3000m", 3),
        (".5k", 500),
        ("5.", 5),
        ("10e-1", 1),
        ("9223372036854775807", (1 << 63) - 1),
        ("00000000000000000000000050", 50),
        ("50.0000000000", 50),
        ("0.000000000000000000000001e24", 1),
        ("1e02", 100),
        ("1E+0003", 1000),
        ("1" * 41, (1 << 63) - 1),
        ("-1e30", 1 - (1 << 63)),
    ]:
        with subtests.test(text=text):
            assert parse_quantity(text) == number


def test_what_is_no_whole_quantity_is_refused(subtests: pytest.Subtests) -> None:
    for text in ["", "x", "1.5", "1m", "1 ", "1KI", "0x10", "1e", "--1", "१", "1" * 300, "1e1000", "1kk", "."]:
        with subtests.test(text=text), pytest.raises(ParseError):
            parse_quantity(text)


@given(st.integers(-(10**17), 10**17), st.sampled_from([("", 1), ("k", 1000), ("Mi", 1 << 20), ("e2", 100)]))
def test_integers_keep_their_value_with_every_suffix(number: int, suffix: tuple[str, int]) -> None:
    text, scale = suffix
    most = (1 << 63) - 1
    assert parse_quantity(f"{number}{text}") == max(-most, min(number * scale, most))


@given(st.text(alphabet="0123456789.eE+-kKmMiGn", max_size=50))
def test_any_text_is_a_number_or_a_parse_error(text: str) -> None:
    try:
        assert isinstance(parse_quantity(text), int)
    except ParseError as error:
        print(error.message)
