"""The page about upgrades: the numbers of the formats are those of the code."""

import re
from pathlib import Path

from deviceplugin.container import limits_file
from deviceplugin.ledger import records
from deviceplugin.model import annotations

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "upgrade.md"


def test_the_numbers_of_the_formats_are_those_of_the_code() -> None:
    shown = re.findall(r"^\| (?:annotation )?`?([a-z-]+).*? \| (\d+) \|", PAGE.read_text(), re.MULTILINE)
    assert {name: int(number) for name, number in shown} == {
        "vcuda-inventory": annotations.VERSION,
        "vcuda-allocation": annotations.VERSION,
        "journal": records.FORMAT_VERSION,
        "limits": limits_file.VERSION,
    }
