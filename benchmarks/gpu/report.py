"""The results file, and the same as a table.

In: outcomes and the environment. Out: `<UTC date>-<gpu>.json` and `.md`; for the emulated driver `<UTC
date>-emulated-<gpu>`. They are written after every check, so that an interrupted run leaves its results.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.gpu.outcome import Outcome, Status

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Setting:
    """The environment of the figures; `torch` is empty if PyTorch is not installed."""

    emulated: bool
    gpu: str
    driver: str
    cuda: str
    torch: str
    date: str
    commit: str
    host: str
    quick: bool
    window_s: float
    repeats: int
    why_this_driver: str


def stem(setting: Setting) -> str:
    return f"{setting.date[:10]}-{_machine(setting)}"


def _machine(setting: Setting) -> str:
    name = re.sub(r"[^a-z0-9]+", "-", setting.gpu.lower()).strip("-")
    return f"emulated-{name}" if setting.emulated else name


def write(directory: Path, setting: Setting, outcomes: Sequence[Outcome]) -> Path:
    """The JSON file's path."""
    directory.mkdir(parents=True, exist_ok=True)
    whole = {"format": FORMAT, **asdict(setting), "checks": [each.as_json() for each in outcomes]}
    path = directory / f"{stem(setting)}.json"
    _put(path, json.dumps(whole, indent=1) + "\n")
    _put(path.with_suffix(".md"), table(setting, outcomes))
    return path


def newest(directory: Path, setting: Setting) -> list[Outcome]:
    """The outcomes of the last run on this GPU, of whatever day: a run of several commands may go on past midnight."""
    form = re.compile(rf"\d{{4}}-\d\d-\d\d-{re.escape(_machine(setting))}\.json")
    files = sorted(path for path in directory.glob("*.json") if form.fullmatch(path.name))
    return read(files[-1]) if files else []


def read(path: Path) -> list[Outcome]:
    """The outcomes of an earlier run."""
    checks = json.loads(path.read_text())["checks"]
    return [Outcome(**{**each, "status": Status(each["status"]), "earlier": tuple(each["earlier"])}) for each in checks]


def superseding(done: Outcome, before: Outcome | None) -> Outcome:
    """Replaces the earlier outcome and records how that ended, so that repeated runs stay visible."""
    if before is None:
        return done
    ended = f"{before.status}: {before.reason}" if before.reason else f"{before.status}"
    return replace(done, earlier=(*before.earlier, ended))


def table(setting: Setting, outcomes: Sequence[Outcome]) -> str:
    kind = "**Emulated driver: no figure here comes from a GPU.**" if setting.emulated else "On a real GPU."
    counts = ", ".join(f"{sum(o.status == status for o in outcomes)} {status}" for status in Status)
    facts = [f"emulated: {str(setting.emulated).lower()}", f"driver {setting.driver}", f"CUDA {setting.cuda}"]
    facts += [f"torch {setting.torch or 'not installed'}", f"commit {setting.commit}", setting.host]
    head = [
        f"# {setting.gpu}, {setting.date}",
        "",
        kind,
        "",
        " · ".join(facts),
        "",
        f"{setting.repeats} repeats, windows of {setting.window_s:g} s{', quick' if setting.quick else ''}: {counts}.",
        "",
        "Load is the machine's of the last minute over its cores; above 1 other work disturbed the check.",
        "",
        "| check | status | figures (median ± IQR) | criterion | load |",
        "|---|---|---|---|---|",
    ]
    return "\n".join(head + [_row(each, setting.commit) for each in outcomes]) + "\n"


def _row(each: Outcome, commit: str) -> str:
    shown = "; ".join(f"{name} {_short(value)}" for name, value in each.figures.items())
    before = "".join(f"before, {end}<br>" for end in each.earlier)
    text = f"{before}{each.reason}{'<br>' if each.reason and shown else ''}{shown}"
    if each.commit and each.commit != commit:
        text += f"<br>{each.date}, commit {each.commit}"
    cells = (f"{each.id}: {each.title}", f"{each.status}", text, each.criterion, f"{each.load:g}")
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _short(value: Any) -> str:  # noqa: ANN401 - JSON
    if isinstance(value, dict) and "median" in value:
        return f"{value['median']:g} ± {value['iqr']:g}"
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_short(each)}" for name, each in value.items())
    return str(value)


def _put(path: Path, text: str) -> None:
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(text)
    fresh.replace(path)
