"""`vcuda top` in a cluster that does not fit on one page, with a real scheduler's view and agents that answer it."""

import re
from pathlib import Path

import pytest

from tests.cli.test_top import Terminal, terminal
from tests.ui.cluster import A100, MadeCluster, serving

NODES = 520
LAST = f"node-{NODES - 1}"
LAST_LINE = "q quit   ? help"


@pytest.fixture(scope="module")
def large() -> MadeCluster:
    """On every node two GPUs are half used; on the last, by name, one is busy and one idle. The first has no agent."""
    made = MadeCluster()
    for number in range(NODES):
        name = f"node-{number:03}"
        made.add_node(name, 2, A100)
        if name == LAST:
            made.runs(f"ml/pod-{number:03}", name, 0, 100, 80, busy=0.9)
        else:
            made.runs(f"ml/pod-{number:03}", name, 0, 50, 40, busy=0.9)
            made.runs(f"ml/side-{number:03}", name, 1, 60, 40, busy=0.9)
    del made.uses["node-000"]
    return made


async def shown_rows(page: Terminal) -> list[str]:
    """Of the first page that has what is used; the one before says that the agents are asked."""
    while True:
        drawn = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", await page.sees(LAST_LINE)).split(LAST_LINE)[:-1]
        complete = [each for each in drawn if "asking the agents" not in each]
        if complete:
            lines = [line for line in complete[0].splitlines() if " by " not in line and line.strip()]
            assert lines[1].startswith("SHOWN "), lines
            return lines[2:]
        page.shown = page.shown.rpartition(LAST_LINE)[2]


async def test_the_first_row_is_the_first_of_the_whole_cluster(
    large: MadeCluster, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    cases: list[tuple[tuple[str, ...], str]] = [
        (("nodes", "--sort-by", "used", "--reverse"), f"{LAST} "),
        (("gpus", "--sort-by", "used"), f"{LAST} +0 .* 90%"),
        (("gpus", "--sort-by", "cores"), f"{LAST} +0 .* 100/100"),
        (("pods", "-A", "--sort-by", "used"), f"ml +pod-{NODES - 1} "),
        (("pods", "-A", "--sort-by", "used-memory"), f"ml +pod-{NODES - 1} "),
        (("containers", "-A", "--sort-by", "used"), f"ml +pod-{NODES - 1} "),
    ]
    for words, first in cases:
        with subtests.test(words=words):
            token = tmp_path / "token"
            token.write_text("good")
            async with serving(large) as url:
                reach = ("--url", url, "--insecure", "--token-file", str(token))
                async with terminal(tmp_path, url, "top", *words, *reach, "--interval", "3600") as page:
                    rows = await shown_rows(page)
                    assert re.match(first, rows[0]), rows
                    page.type("q")
                    assert await page.ends() == 0
