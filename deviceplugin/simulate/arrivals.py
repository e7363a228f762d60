"""In which order tasks arrive, and which come a second time.

In: tasks, a seed and how much shall be asked for. Out: the tasks shuffled, then drawn with replacement, until their
demand reaches that; as in the published experiment. The same seed gives the same arrivals on every machine. Tasks that
ask for so little that it would take days are refused, as they stand in the file.
"""

import random
from collections.abc import Iterator, Sequence

from deviceplugin.errors import ConfigError
from deviceplugin.simulate.task import Task

MOST_ARRIVALS = 5_000_000


def arrivals(tasks: Sequence[Task], *, seed: int, until: int) -> Iterator[Task]:
    """At least one of the tasks has a demand, or it would never end."""
    drawn = random.Random(seed)  # noqa: S311 - an experiment that can be repeated, no secret
    first = list(tasks)
    drawn.shuffle(first)
    asked = 0
    for task in _then_again(first, tasks, drawn):
        if asked >= until:
            return
        asked += task.demand
        yield task


def check_length(tasks: Sequence[Task], *, until: int) -> None:
    """Raises ConfigError where more tasks would have to come than anybody waits for."""
    count = until * len(tasks) // max(1, sum(task.demand for task in tasks))
    if count > MOST_ARRIVALS:
        raise ConfigError(
            f"some {count} tasks would have to come until they have asked for that much, and at most {MOST_ARRIVALS} "
            "are simulated; lower --inflate, or leave out pods that ask for no GPU"
        )


def _then_again(first: Sequence[Task], tasks: Sequence[Task], drawn: random.Random) -> Iterator[Task]:
    yield from first
    while True:
        yield drawn.choice(tasks)
