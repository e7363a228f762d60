"""Kubernetes quantities as numbers: `50`, `1k`, `2e3`, `1Ki`, `3000m`.

In: the text (or number) of a resource in JSON. Out: a number, or ParseError. Extended resources are whole numbers; the
API server refuses anything else. As in Kubernetes there may be any number of digits, and what is above 2^63-1 counts as
that.
"""

import re
from fractions import Fraction
from functools import lru_cache

from deviceplugin.errors import ParseError

_FORM = re.compile(r"([+-]?)(\d+(?:\.\d*)?|\.\d+)(?:[eE]([+-]?0*\d{1,3})|([numkMGTPE]|[KMGTPE]i)?)", re.ASCII)
_LONGEST = 256  # of text: what is longer was written to cost time
_MOST = (1 << 63) - 1
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


@lru_cache(10_000)  # pods and nodes have few different quantities, and they are read again and again
def parse_quantity(text: str | int) -> int:
    """The whole number of a quantity; ParseError for anything else."""
    value = exact_quantity(text)
    if value.denominator != 1:
        raise ParseError(f"{text!r} is not a whole number; request extended resources in whole units")
    return int(value)


def exact_quantity(text: str | int) -> Fraction:
    """The number, with fractions as for CPU; ParseError for anything else."""
    found = _FORM.fullmatch(str(text)) if len(str(text)) <= _LONGEST else None
    if found is None:
        raise ParseError(f"{ascii(text)[:60]} is not a Kubernetes quantity")
    sign, digits, exponent, suffix = found.groups()
    value = min(Fraction(digits) * _scale(exponent, suffix or ""), Fraction(_MOST))
    return -value if sign == "-" else value


def _scale(exponent: str | None, suffix: str) -> Fraction:
    if suffix in _BINARY:
        return Fraction(1 << _BINARY[suffix])
    return Fraction(10) ** (int(exponent) if exponent else _DECIMAL[suffix])
