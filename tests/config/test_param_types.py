"""Durations, booleans, hosts: read as documented, shown so that they read back."""

import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.config import param_types as types
from deviceplugin.config.agent import AGENT
from deviceplugin.config.command import Setting
from deviceplugin.config.scheduler import SCHEDULER

DURATIONS = {
    "5s": (5, "5s"),
    "1m": (60, "1m"),
    "1m30s": (90, "1m30s"),
    "1.5h": (5400, "1h30m"),
    "500ms": (0.5, "500ms"),
    "250us": (0.00025, "0.25ms"),
    "30": (30, "30s"),
    "0.5": (0.5, "500ms"),
    ".5s": (0.5, "500ms"),
    "0": (0, "0s"),
    "1h0m5s": (3605, "1h5s"),
}


def test_durations_are_gos_or_plain_seconds() -> None:
    read = {text: types.DURATION.read(text) for text in DURATIONS}
    assert {text: (seconds, types.DURATION.show(seconds)) for text, seconds in read.items()} == DURATIONS


def refusal(kind: types.SettingType[Any], text: str) -> str:
    """What is said to a value; empty where it is taken."""
    try:
        kind.read(text)
    except ValueError as error:
        return str(error)
    return ""


def test_other_durations_are_refused() -> None:
    texts = ("", "s", "5x", "-5s", "1m 30s", "5s6", "1e3", "inf", "nan", "٣s", "99999h")
    said = {text: refusal(types.DURATION, text) for text in texts}
    assert {
        text: each for text, each in said.items() if not re.search("is not a duration|longer than a year", each)
    } == {}


@given(st.integers(min_value=0, max_value=86_400_000).map(lambda ms: ms / 1000))
def test_a_shown_duration_reads_back(seconds: float) -> None:
    assert types.DURATION.read(types.DURATION.show(seconds)) == pytest.approx(seconds, abs=1e-3)


def test_true_and_false_are_written_as_in_go() -> None:
    truths = dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True)
    truths |= dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False)
    assert {text: types.BOOLEAN.read(text) for text in truths} == truths


def test_hosts_are_addresses_or_names() -> None:
    hosts = ("0.0.0.0", "::", "[::1]", "localhost", "node-1.example")
    assert [types.HOST.read(text) for text in hosts] == [text.strip("[]") for text in hosts]


def test_a_socket_may_be_a_path_or_an_address() -> None:
    sockets = ("/run/x.sock", "unix:///run/x.sock", "unix:/run/x.sock")
    assert {str(types.OPTIONAL_SOCKET.read(text)) for text in sockets} == {"/run/x.sock"}


_ALL = [*AGENT.settings, *SCHEDULER.settings]
_PIECES = (
    *("/", "0", "1", "9.", "h", "m", "ns", "\n", "\0", "\u2028", "\udc80", "a", "dev", ".", "..", "unix:", "//"),
    *("::1", "%", "https://", "=", ",", "-", " "),
)
_TEXTS = st.text(max_size=60) | st.lists(st.sampled_from(_PIECES), max_size=8).map("".join)


@given(_TEXTS, st.sampled_from(_ALL))
def test_any_text_is_read_or_refused_with_a_phrase(text: str, setting: Setting) -> None:
    type_ = setting.value_type
    try:
        value = type_.read(text)
    except ValueError as error:
        assert str(error).isprintable()  # noqa: PT017
    else:
        assert type_.show(value).isprintable()
        assert type_.read(type_.show(value)) == value


def test_what_cannot_be_printed_is_refused_in_one_line_by_every_type() -> None:
    for setting in _ALL:
        for text in ("/\n/", "/a\nb", "/a\x1b[31m", "/a\0", "/a\udc80", "::1%\n", "https://a\n/"):
            with pytest.raises(ValueError) as caught:
                setting.value_type.read(text)
            assert str(caught.value).isprintable(), (setting.flag, text)


def test_every_default_reads_back_from_how_it_is_shown() -> None:
    for setting in _ALL:
        if not setting.derived:
            assert setting.value_type.read(setting.value_type.show(setting.default)) == setting.default, setting.flag


def test_flags_keys_and_variables_are_different_for_every_setting() -> None:
    for settings, prefix in ((AGENT.settings, AGENT.env_prefix), (SCHEDULER.settings, SCHEDULER.env_prefix)):
        for names in (
            [each.flag for each in settings],
            [each.key for each in settings],
            [name for each in settings for name in each.variables(prefix)],
        ):
            assert [name for name, count in Counter(names).items() if count > 1] == []


def test_lists_of_xids_are_read_in_one_form() -> None:
    lists = {"79": "79", " 79, 119 ,": "79,119", "ALL,48": "all,48", "": ""}
    assert {text: types.XIDS_OR_ALL.read(text) for text in lists} == lists


def test_what_is_no_xid_is_refused_and_named() -> None:
    texts = ("x", "-1", "0", "1.5", "4294967296", "79;80", "²")
    for kind in (types.XIDS, types.XIDS_OR_ALL):
        said = {text: refusal(kind, text) for text in texts}
        wanted = "is not an XID; give a list such as 79,119"
        assert {text: each for text, each in said.items() if wanted not in each or repr(text) not in each} == {}


def test_not_every_xid_can_be_critical() -> None:
    with pytest.raises(ValueError, match="'all' is not an XID"):
        types.XIDS.read("all")
