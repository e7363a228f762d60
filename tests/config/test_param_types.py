"""Durations, booleans, hosts: read as documented, shown so that they read back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.config import param_types as types
from deviceplugin.config.agent import AGENT
from deviceplugin.config.command import Program
from deviceplugin.config.scheduler import SCHEDULER
from deviceplugin.config.setting import Setting


@pytest.mark.parametrize(
    ("text", "seconds", "shown"),
    [
        ("5s", 5, "5s"),
        ("1m", 60, "1m"),
        ("1m30s", 90, "1m30s"),
        ("1.5h", 5400, "1h30m"),
        ("500ms", 0.5, "500ms"),
        ("250us", 0.00025, "0.25ms"),
        ("30", 30, "30s"),
        ("0.5", 0.5, "500ms"),
        (".5s", 0.5, "500ms"),
        ("0", 0, "0s"),
        ("1h0m5s", 3605, "1h5s"),
    ],
)
def test_durations_are_gos_or_plain_seconds(text: str, seconds: float, shown: str) -> None:
    assert types.DURATION.read(text) == seconds
    assert types.DURATION.show(seconds) == shown


@pytest.mark.parametrize("text", ["", "s", "5x", "-5s", "1m 30s", "5s6", "1e3", "inf", "nan", "٣s", "99999h"])
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a duration|is longer than a year"):
        types.DURATION.read(text)


@given(st.integers(min_value=0, max_value=86_400_000).map(lambda ms: ms / 1000))
def test_a_shown_duration_reads_back(seconds: float) -> None:
    assert types.DURATION.read(types.DURATION.show(seconds)) == pytest.approx(seconds, abs=1e-3)


@pytest.mark.parametrize("text", ["1", "t", "T", "TRUE", "true", "True"])
def test_true_is_written_as_in_go(text: str) -> None:
    assert types.BOOLEAN.read(text) is True


@pytest.mark.parametrize("text", ["0", "f", "F", "FALSE", "false", "False"])
def test_false_is_written_as_in_go(text: str) -> None:
    assert types.BOOLEAN.read(text) is False


@pytest.mark.parametrize("text", ["0.0.0.0", "::", "[::1]", "localhost", "node-1.example"])
def test_hosts_are_addresses_or_names(text: str) -> None:
    assert types.HOST.read(text) == text.strip("[]")


@pytest.mark.parametrize("text", ["/run/x.sock", "unix:///run/x.sock", "unix:/run/x.sock"])
def test_a_socket_may_be_a_path_or_an_address(text: str) -> None:
    assert str(types.OPTIONAL_SOCKET.read(text)) == "/run/x.sock"


_ALL = [*AGENT.settings, *SCHEDULER.settings]
_PIECES = (
    "/",
    "0",
    "1",
    "9.",
    "h",
    "m",
    "ns",
    "\n",
    "\0",
    "\u2028",
    "\udc80",
    "a",
    "dev",
    ".",
    "..",
    "unix:",
    "//",
    "::1",
    "%",
    "https://",
    "=",
    ",",
    "-",
    " ",
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
        if not setting.derive:
            assert setting.value_type.read(setting.value_type.show(setting.default)) == setting.default, setting.flag


@pytest.mark.parametrize("program", [AGENT, SCHEDULER], ids=lambda program: str(program.command))
def test_flags_keys_and_variables_are_different_for_every_setting(program: Program[object]) -> None:
    all_ = program.settings
    for names in (
        [s.flag for s in all_],
        [s.key for s in all_],
        [name for s in all_ for name in s.variables(program.env_prefix)],
    ):
        assert len(set(names)) == len(names)


@pytest.mark.parametrize(("text", "xids"), [("79", "79"), (" 79, 119 ,", "79,119"), ("ALL,48", "all,48"), ("", "")])
def test_lists_of_xids_are_read_in_one_form(text: str, xids: str) -> None:
    assert types.XIDS_OR_ALL.read(text) == xids


@pytest.mark.parametrize("text", ["x", "-1", "0", "1.5", "4294967296", "79;80", "²"])
@pytest.mark.parametrize("kind", [types.XIDS, types.XIDS_OR_ALL])
def test_what_is_no_xid_is_refused_and_named(kind: types.SettingType[str], text: str) -> None:
    with pytest.raises(ValueError, match="is not an XID; give a list such as 79,119") as raised:
        kind.read(text)
    assert repr(text) in str(raised.value)


def test_not_every_xid_can_be_critical() -> None:
    with pytest.raises(ValueError, match="'all' is not an XID"):
        types.XIDS.read("all")
