"""`scripts/demo [--only node|cluster] [--keep]`: runs the parts, prints every check, and exits.

Out: the steps on stdout. Exit status 0: all checks passed; 1: one line on stderr says what failed; 130: interrupted.
Invariant: when it returns, no program that it started runs, and without --keep its files are gone.
"""

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable

from rich.console import Console

from scripts.demonstration import cluster_steps, node_steps
from scripts.demonstration.output import WIDTH, Check, Output
from scripts.demonstration.setup import TROUBLE, temporary_home

PARTS = {"node": node_steps.PART, "cluster": cluster_steps.PART}
PART_S = 300.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/demo", description="Shows vcuda without a GPU and a cluster.")
    parser.add_argument("--only", choices=tuple(PARTS), help="run one part: a node with eight GPUs, or a small cluster")
    parser.add_argument("--keep", action="store_true", help="keep the temporary directories with all files and logs")
    given = parser.parse_args()
    names = [given.only] if given.only else list(PARTS)
    try:
        problem = asyncio.run(_run(names, keep=given.keep))
    except asyncio.CancelledError:
        print("demo: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has left; Python must not complain
        return 1
    if problem:
        print(f"demo: {problem}", file=sys.stderr)
        return 1
    return 0


async def _run(names: Iterable[str], *, keep: bool) -> str:
    """What failed, in one sentence; empty if nothing did."""
    _cancel_on_signals()
    began = time.monotonic()
    parts = [PARTS[name] for name in names]
    output = Output(_console(), steps=sum(len(part.steps) for part in parts))
    problem = ""
    for name in names:
        problem = problem or await _run_part(name, output, keep=keep)
    if output.checks:
        output.summary(time.monotonic() - began)
    return problem or failed_checks(output.checks)


async def _run_part(name: str, output: Output, *, keep: bool) -> str:
    part = PARTS[name]
    output.part(part.title, part.legend)
    try:
        with temporary_home(keep=keep) as home:
            if keep:
                output.say(f"files and logs: {home}", style="dim")
            async with part.set_up(home, output) as steps, asyncio.timeout(PART_S):
                for title, step in zip(part.steps, steps, strict=True):
                    output.step(title)
                    await step()
    except TROUBLE as error:
        return str(error)
    except TimeoutError:
        return f"the part {name!r} did not finish within {PART_S:g} s"
    return ""


def failed_checks(checks: Iterable[Check]) -> str:
    failed = [f"{check.promise}: {check.found}" for check in checks if not check.passed]
    more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
    return f"a check failed: {failed[0]}{more}" if failed else ""


def _console() -> Console:
    """As wide as the terminal, but no wider than is easy to read; a file gets the full width."""
    console = Console(highlight=False)
    console.width = min(WIDTH, console.width) if console.is_terminal else WIDTH
    return console


def _cancel_on_signals() -> None:
    """The first signal cancels; later ones do nothing, so that a second Ctrl-C leaves no program behind."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None

    def handle(action: Callable[[], object]) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, action)

    def cancel() -> None:
        handle(lambda: None)
        task.cancel()

    handle(cancel)
