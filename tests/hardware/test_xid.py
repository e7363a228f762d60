"""Which XIDs make a GPU unhealthy."""

import re
from pathlib import Path

from deviceplugin.hardware.health import (
    APPLICATION_XIDS,
    CLEANUP,
    DECIDED_BY_ACTION,
    IGNORE,
    POWER_SMOOTHING,
    RAISED_BY_APPLICATIONS,
    RESTART_APP,
    XidPolicy,
    parse_policy,
    phrase,
)

CLASSES = [RESTART_APP, IGNORE, POWER_SMOOTHING, CLEANUP, RAISED_BY_APPLICATIONS, DECIDED_BY_ACTION]
PAGE = Path(__file__).parents[2] / "docs" / "gpu-health.md"


def _table() -> dict[str, frozenset[int]]:
    """Class to XIDs, as the page shows them: `39-41` is a range."""
    rows = re.findall(r"^\| ([^|]+) \| ((?:such as )?[\d, -]+) \| [^|]+ \|$", PAGE.read_text(), re.MULTILINE)
    return {
        name: frozenset(
            xid
            for first, last in re.findall(r"(\d+)(?:-(\d+))?", numbers)
            for xid in range(int(first), int(last or first) + 1)
        )
        for name, numbers in rows
    }


def test_the_page_shows_the_classes_of_the_code() -> None:
    *classes, others = _table().values()
    assert classes == CLASSES
    assert all(XidPolicy().is_critical(xid) for xid in others)


def test_an_xid_is_in_one_class() -> None:
    assert len(frozenset().union(*CLASSES)) == sum(map(len, CLASSES))


def test_what_an_application_did_to_itself_leaves_the_gpu_healthy() -> None:
    application = (13, 31, 32, 39, 43, 45, 63, 68, 69, 94, 109, 137, 145)
    assert [xid for xid in application if XidPolicy().is_critical(xid)] == []


def test_a_fault_of_the_card_or_an_unknown_one_is_critical() -> None:
    card = (46, 48, 62, 64, 74, 79, 95, 110, 119, 120, 140, 143, 155, 156, 158, 171, 999)
    assert [xid for xid in card if not XidPolicy().is_critical(xid)] == []


def test_the_operator_adds_and_removes_xids_and_critical_wins() -> None:
    verdicts = {
        ("79", "", 79): False,
        ("79,119", "", 119): False,
        ("", "31", 31): True,
        ("31", "31", 31): True,
        ("all", "", 79): False,
        ("all", "79", 79): True,
        ("all,48", "", 48): False,
        ("", "", 154): False,
        ("", "154", 154): True,
        ("", "144,149", 149): True,
    }
    found = {
        (ignored, critical, xid): parse_policy(ignored=ignored, critical=critical).is_critical(xid)
        for ignored, critical, xid in verdicts
    }
    assert found == verdicts


def test_an_xid_is_named_with_its_meaning_if_known() -> None:
    assert phrase(79) == "XID 79 (GPU has fallen off the bus)"
    assert phrase(998) == "XID 998"
    assert all(phrase(xid).startswith(f"XID {xid}") for xid in APPLICATION_XIDS)
