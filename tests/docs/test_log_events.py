"""The page of log events has each that the code can log, wherever its key comes from."""

import re
from pathlib import Path

import pytest

from deviceplugin.agent.reporter import owner_fields
from deviceplugin.model.allocation import ContainerRef, PodRef, PodUid
from scripts.log_events import OWNER, LogEvent, events
from tests.scripts.released import ROOT

CODE = """
import structlog
log = structlog.get_logger("vcuda.made")

def plain(error):
    log.info("began", gpus=8, **owner_fields(error))
    log.warning("ended" if error else "ended_well", error=error)
    log.exception("broke")

class Telling:
    def tell(self, event, error):
        log.warning(event, error=error)

    def use(self):
        self.tell("passed", "x")
        self.tell(event="named", error="x")
        word, why = "assigned", ""
        log.debug(word)
"""


def found(folder: Path, text: str) -> set[LogEvent]:
    package = folder / "package"
    package.mkdir()
    (package / "made.py").write_text(text)
    return set(events(package))


def test_keys_are_found_wherever_they_come_from(tmp_path: Path) -> None:
    made = found(tmp_path, CODE)
    said = {each.key: (each.level, each.fields) for each in made}
    assert said == {
        "began": ("info", ("gpus", *OWNER)),
        "ended": ("warning", ("error",)),
        "ended_well": ("warning", ("error",)),
        "broke": ("error", ()),
        "passed": ("warning", ("error",)),
        "named": ("warning", ("error",)),
        "assigned": ("debug", ()),
    }
    assert {(each.logger, each.module) for each in made} == {("vcuda.made", "package/made.py")}


def test_a_key_that_cannot_be_found_is_no_gap(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"package/made\.py:4: the key of this log event is not found"):
        found(tmp_path, 'import structlog\nlog = structlog.get_logger("x")\ndef tell(event):\n    log.info(event)\n')


def test_what_names_the_owner_of_a_grant_is_known() -> None:
    assert tuple(owner_fields(ContainerRef(PodRef(PodUid("u"), "n", "p"), "c"))) == OWNER


def test_the_page_has_the_keys_that_the_code_has_as_strings() -> None:
    page = (ROOT / "docs/reference/log-events.md").read_text()
    listed = set(re.findall(r"^- `(\w+)\(", page, re.MULTILINE))
    code = "\n".join(path.read_text() for path in (ROOT / "deviceplugin").rglob("*.py"))
    written = set(re.findall(r"\b_?log(?:ger)?\.(?:debug|info|warning|error|exception)\(\s*\"(\w+)\"", code))
    assert written <= listed
    assert len(written) > 100
