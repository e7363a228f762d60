"""Log lines: the same keys from structlog and from the standard library, and a traceback only for a bug."""

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from deviceplugin.errors import CapacityError
from deviceplugin.log import LazyLogger, Pace, open_log, open_log_for_command
from deviceplugin.model.request import RequestKind


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_json_with_the_four_keys_first_and_what_was_bound() -> None:
    out = io.StringIO()
    open_log(level="info", stream=out)
    structlog.contextvars.bind_contextvars(pod="p", namespace="n", uid="u")
    structlog.get_logger("vcuda.kubelet").bind(container="c").info("allocated", gpu="GPU-1", cores=50)
    (line,) = lines(out)
    assert list(line)[:4] == ["ts", "level", "logger", "msg"]
    ts = line.pop("ts")
    assert ts.endswith("Z")
    assert (line["level"], line["logger"], line["msg"]) == ("info", "vcuda.kubelet", "allocated")
    assert (line["gpu"], line["cores"], line["container"]) == ("GPU-1", 50, "c")
    assert (line["pod"], line["namespace"], line["uid"]) == ("p", "n", "u")


def test_lines_of_the_standard_library_look_the_same() -> None:
    out = io.StringIO()
    open_log(level="info", stream=out)
    logging.getLogger("other").warning("disk is %d%% full", 99)
    (line,) = lines(out)
    assert (line["level"], line["logger"], line["msg"]) == ("warning", "other", "disk is 99% full")


def test_lines_below_the_level_are_not_written_and_chatty_libraries_keep_quiet_even_at_debug() -> None:
    out = io.StringIO()
    open_log(level="info", stream=out)
    structlog.get_logger("vcuda.x").debug("quiet")
    open_log(level="debug", stream=out)
    logging.getLogger("kubernetes.client.rest").debug("response body: ...")
    structlog.get_logger("vcuda.x").debug("loud")
    assert [line["msg"] for line in lines(out)] == ["loud"]


def test_an_error_is_its_sentence_and_a_bug_has_one_traceback_field() -> None:
    out = io.StringIO()
    open_log(level="info", stream=out)
    logger = structlog.get_logger("vcuda.x")
    logger.error("refused", exc_info=CapacityError("50 cores were asked, 20 are free"))
    try:
        print(1 / int("0"))
    except ZeroDivisionError:
        logger.exception("refused")
    ours, bug = lines(out)
    assert (ours["error"], "traceback" in ours) == ("50 cores were asked, 20 are free", False)
    assert bug["error"] == "ZeroDivisionError: division by zero"
    assert bug["traceback"].startswith("Traceback (most recent call last):")
    assert len(out.getvalue().splitlines()) == 2


def test_values_are_written_as_words() -> None:
    out = io.StringIO()
    open_log(level="info", stream=out)
    structlog.get_logger("x").info(
        "m", kind=RequestKind.LINKED, path=Path("/a"), ids=frozenset({"b", "a"}), deep=[Path("/c")]
    )
    (line,) = lines(out)
    assert (line["kind"], line["path"], line["ids"], line["deep"]) == ("link", "/a", ["a", "b"], ["/c"])


def test_on_a_terminal_lines_are_for_people() -> None:
    out = Terminal()
    open_log(level="info", stream=out)
    structlog.get_logger("vcuda.x").info("ready", gpus=8)
    assert "ready" in out.getvalue()
    assert not out.getvalue().startswith("{")


def test_console_without_a_terminal_has_no_colours() -> None:
    out = io.StringIO()
    open_log(level="info", console=True, stream=out)
    structlog.get_logger("vcuda.x").info("ready")
    assert "ready" in out.getvalue()
    assert "\x1b" not in out.getvalue()


def test_a_line_that_others_cause_is_written_once_a_period_for_each_key_and_few_keys_are_kept() -> None:
    now = 0.0
    pace = Pace(60.0, most=3, clock=lambda: now)
    assert [pace.allows("event", pod) for pod in "aabbaccdd"] == [
        True,
        False,
        True,
        False,
        False,
        True,
        False,
        False,
        False,
    ]
    now = 59.9
    assert not pace.allows("event", "a")
    now = 60.0
    assert [pace.allows("event", pod) for pod in "dd"] == [True, False]
    for number in range(10_000):
        pace.allows("event", number)
    assert len(pace._written) == 3


def test_a_lazy_logger_writes_as_any_other_and_nothing_below_the_level() -> None:
    out = io.StringIO()
    open_log(level="warning", stream=out)
    lazy = LazyLogger("vcuda.kube")
    lazy.info("quiet")
    lazy.warning("loud", path="/x")
    assert [(line["logger"], line["msg"], line["path"]) for line in lines(out)] == [("vcuda.kube", "loud", "/x")]
    assert not hasattr(lazy, "shout")


def test_a_command_writes_errors_alone(capsys: pytest.CaptureFixture[str]) -> None:
    open_log_for_command()
    structlog.get_logger("vcuda.x").warning("quiet")
    structlog.get_logger("vcuda.x").error("loud")
    logging.getLogger("asyncio").warning("quiet")
    said = capsys.readouterr()
    assert (said.out, "loud" in said.err, "quiet" in said.err) == ("", True, False)
