"""The tables of `vcuda simulate`: figures by policy, by GPU model, and why tasks wait.

In: the runs of each policy, and the width of the terminal. Out: lines. Invariant: every policy is in every table; where
not all stand side by side, those that are left follow below.
"""

import textwrap
from collections.abc import Iterator, Mapping, Sequence

from deviceplugin.cli.table import GAP, Column, table
from deviceplugin.simulate.report import Tried, means, models, simplified, waits
from deviceplugin.simulate.task import Scene

_TEXT_WIDTH = 100
_LEAST_FIRST = 24
"""What the first column keeps before policies go below."""
_HEADINGS = (
    "AT N%: percent of all GPUs that is allocated when N percent were requested. USELESS%: percent that is free in the "
    "end and that the expected next task could not use. WAITING: tasks that wait, of all that came."
)


def lines(scene: Scene, tried: Sequence[Tried], width: int | None) -> list[str]:
    used = {each.name: {model: f"{part:.1f}" for model, part in models(each).items()} for each in tried}
    waiting = {each.name: {reason: f"{count:.0f}" for reason, count in waits(each).items()} for each in tried}
    parts = [
        [*_wrapped(f"{_title(scene, tried)}. {_HEADINGS}", width), "", *_figures(tried, width)],
        *_side_by_side("USED% OF GPU MODEL", used, "0.0", width),
        *_side_by_side("TASKS THAT WAIT, MOST NODES SAID", waiting, "0", width),
        _wrapped(simplified(tried), width),
    ]
    return [line for part in parts for line in (*part, "")][:-1]


def _wrapped(text: str, width: int | None) -> list[str]:
    return textwrap.wrap(text, min(width or _TEXT_WIDTH, _TEXT_WIDTH), break_on_hyphens=False)


def _title(scene: Scene, tried: Sequence[Tried]) -> str:
    seeds = len(tried[0].runs)
    counted = ((len(scene.tasks), "pod"), (len(scene.nodes), "node"), (scene.gpus, "GPU"))
    pods, nodes, gpus = (f"{count} {what}{'' if count == 1 else 's'}" for count, what in counted)
    return f"{pods} on {nodes} with {gpus}, {'one seed' if seeds == 1 else f'mean of {seeds} seeds'}"


def _figures(tried: Sequence[Tried], width: int | None) -> list[str]:
    """The last percentage stays on every terminal."""
    marks = tried[0].marks
    columns = (
        Column("NODE POLICY"),
        *(Column(f"AT {mark}%", rank=0 if mark == marks[-1] else 2, right=True) for mark in marks),
        Column("USELESS%", rank=3, right=True),
        Column("WAITING", rank=1, right=True),
        Column("SECONDS", rank=4, right=True),
    )
    return table(columns, [_row(each) for each in tried], width=width)


def _row(tried: Tried) -> tuple[str, ...]:
    figures = means(tried)
    return (
        tried.name,
        *(f"{figures[f'allocated_percent_at_{mark}']:.2f}" for mark in tried.marks),
        f"{figures['fragmented_percent']:.2f}",
        f"{figures['waiting']:.0f}/{figures['tasks']:.0f}",
        f"{figures['seconds']:.1f}",
    )


def _side_by_side(
    heading: str, columns: Mapping[str, Mapping[str, str]], absent: str, width: int | None
) -> Iterator[list[str]]:
    """One table, or as many as it takes; none where there is no row."""
    rows = list(dict.fromkeys(row for column in columns.values() for row in column))
    for names in _fitting(columns, width) if rows else ():
        shown = [(row, *(columns[name].get(row, absent) for name in names)) for row in rows]
        yield table((Column(heading), *(Column(name.upper(), right=True) for name in names)), shown, width=width)


def _fitting(columns: Mapping[str, Mapping[str, str]], width: int | None) -> list[list[str]]:
    found: list[list[str]] = [[]]
    room = None
    for name, column in columns.items():
        needed = len(GAP) + max(len(name), *map(len, column.values()), 1)
        if room is None or (needed > room and found[-1]):
            if found[-1]:
                found.append([])
            room = (width - _LEAST_FIRST) if width is not None else 1 << 30
        found[-1].append(name)
        room -= needed
    return found
