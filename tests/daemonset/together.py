"""Many sets of values rendered by one process of Helm: each in a chart of its own name below an outer one.

In: sets of values. Out: what each gives, or that it is refused and why. As of a chart alone, but for the chart's name.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scripts import manifests
from tests.daemonset.chart import NAMESPACE, SOURCE, Chart, Object

_AT_A_TIME = 25
_BY_SCHEMA = re.compile(r"^part(\d+):\n((?: *- .*\n)+)", re.MULTILINE)
_BY_TEMPLATE = re.compile(r"outer/charts/part(\d+)/templates/.*")
_UNSAID = re.compile(r"helm.sh/chart: part\d+-|^ *#.*\n|^ +[\w.]+: LS0t.*\n", re.MULTILINE)
"""The chart's name, comments, and PEM in base64: certificates and keys that Helm makes for each rendering."""


@dataclass(frozen=True, slots=True)
class Refused:
    """`by_schema`: the faults that the schema finds; empty where a template refuses the values."""

    by_schema: str = ""


Given = frozenset[str] | Refused
"""Objects and notes as text, without `_UNSAID`."""


def together(chart: Chart, sets: Sequence[Object]) -> list[Given]:
    """Some at a time: one that is refused hides what becomes of the others, so these are asked again without it."""
    return [given for some in _batched(sets, _AT_A_TIME) for given in _some_together(chart, some)]


def _batched(sets: Sequence[Object], size: int) -> Iterator[Sequence[Object]]:
    return (sets[at : at + size] for at in range(0, len(sets), size))


def _some_together(chart: Chart, sets: Sequence[Object]) -> list[Given]:
    found: dict[int, Given] = {}
    while len(found) < len(sets):
        text, refused = _attempt(chart, {at: values for at, values in enumerate(sets) if at not in found})
        parts: dict[int, set[str]] = {}
        _, *pieces = SOURCE.split(text)
        for number, piece in zip(pieces[::2], pieces[1::2], strict=True):
            parts.setdefault(int(number), set()).add(_UNSAID.sub("", piece))
        found |= refused | {number: frozenset(objects) for number, objects in parts.items()}
    return [found[at] for at in range(len(sets))]


def _attempt(chart: Chart, sets: dict[int, Object]) -> tuple[str, dict[int, Refused]]:
    """What Helm prints, or whom it refuses: all whom the schema does not permit, else one."""
    done = chart.below_one(sets, f"--namespace={NAMESPACE}", *manifests.CLUSTER)
    refused = {int(number): Refused(said) for number, said in _BY_SCHEMA.findall(done.stderr)}
    if by_template := _BY_TEMPLATE.search(done.stderr):
        refused[int(by_template[1])] = Refused()
    assert bool(done.returncode) == bool(refused), done.stderr
    return done.stdout, refused
