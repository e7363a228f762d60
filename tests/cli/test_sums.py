"""How much is allocated: every command that answers this gives the same sum of one cluster."""

from pathlib import Path

from tests.cli.command_runner import run
from tests.ui.cluster import serving, usual

ANSWERS = (
    ("nodes",),
    ("pods", "-A"),
    ("top", "nodes"),
    ("top", "gpus"),
    ("top", "pods", "-A"),
    ("top", "containers", "-A"),
    ("top", "namespaces"),
)
ALLOCATED = (2170, 1536.5)
"""Cores and GiB of `usual`: what is reserved is in it, and what Pending pods ask for is not."""


def cell_below(heading: str, lines: list[str]) -> str:
    """Of the last line, in a column of numbers."""
    end = lines[0].index(heading) + len(heading)
    return lines[-1][:end].split()[-1]


def allocated(text: str) -> tuple[float, float]:
    lines = text.splitlines()
    assert lines[-1].startswith("TOTAL"), text
    cores, memory = (cell_below(heading, lines).partition("/")[0] for heading in ("CORES ", "MEMORY"))
    return float(cores), float(memory.removesuffix("GiB"))


async def test_every_answer_has_the_same_sum_of_what_is_allocated(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("good")
    async with serving(usual()) as url:
        reach = ("--url", url, "--insecure", "--token-file", str(token))
        said = {words: await run(*words, "--sum", *reach) for words in ANSWERS}
        pending = await run("pods", "-A", "--status", "pending", "--sum", *reach)
    assert {words: allocated(each.stdout) for words, each in said.items()} == dict.fromkeys(ANSWERS, ALLOCATED)
    assert "llama-70b" in said["top", "pods", "-A"].stdout, "a Reserved pod has its GPUs"
    assert (pending.stdout.count("sweep"), "TOTAL" in pending.stdout) == (2, False), "nothing of it is allocated"
