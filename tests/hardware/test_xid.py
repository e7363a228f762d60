"""Which XIDs make a GPU unhealthy."""

import pytest

from deviceplugin.hardware.xid import APPLICATION_XIDS, XidPolicy, parse_policy, phrase


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 68, 109])
def test_what_an_application_did_to_itself_leaves_the_gpu_healthy(xid: int) -> None:
    assert not XidPolicy().is_critical(xid)


@pytest.mark.parametrize("xid", [48, 64, 74, 79, 95, 119, 999])
def test_a_fault_of_the_card_or_an_unknown_one_is_critical(xid: int) -> None:
    assert XidPolicy().is_critical(xid)


@pytest.mark.parametrize(
    ("ignored", "critical", "xid", "expected"),
    [
        ("79", "", 79, False),
        ("79,119", "", 119, False),
        ("", "31", 31, True),
        ("31", "31", 31, True),
        ("all", "", 79, False),
        ("all", "79", 79, True),
        ("all,48", "", 48, False),
        ("", "", 154, False),
        ("", "154", 154, True),
    ],
)
def test_the_operator_adds_and_removes_xids_and_critical_wins(
    ignored: str, critical: str, xid: int, expected: bool
) -> None:
    assert parse_policy(ignored=ignored, critical=critical).is_critical(xid) is expected


def test_an_xid_is_named_with_its_meaning_if_known() -> None:
    assert phrase(79) == "XID 79 (GPU has fallen off the bus)"
    assert phrase(998) == "XID 998"
    assert all(phrase(xid).startswith(f"XID {xid}") for xid in APPLICATION_XIDS)
