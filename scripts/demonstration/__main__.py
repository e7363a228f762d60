"""`scripts/demo [--only node|cluster | --ui] [--keep]`: runs the shows and exits, or leaves the cluster running.

Out: the steps and their checks on stdout, or with --ui the address of the page, until Ctrl-C. Exit status 0: all checks
passed, or the page was ended; 1: one line on stderr says what failed; 130: interrupted. Invariant: when it returns, no
program that it started runs, and without --keep its files are gone.
"""

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterable

from scripts.demonstration import cluster_steps, node_steps
from scripts.demonstration.output import Check, Output
from scripts.demonstration.setup import TROUBLE, temporary_home

SHOWS = {"node": node_steps.show, "cluster": cluster_steps.show}
PAGE = "page"
_PARTS = {**SHOWS, PAGE: cluster_steps.show_page}
SHOW_S = 300.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/demo", description="Shows vcuda without a GPU and a cluster.")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--only", choices=tuple(SHOWS), help="run one show: a node with eight GPUs, or a small cluster")
    which.add_argument("--ui", action="store_true", help="start the small cluster with pods, and show it in a browser")
    parser.add_argument("--keep", action="store_true", help="keep the temporary directories with all files and logs")
    given = parser.parse_args()
    names = [PAGE] if given.ui else [given.only] if given.only else list(SHOWS)
    try:
        problem = asyncio.run(_run(names, keep=given.keep))
    except asyncio.CancelledError:
        if given.ui:
            return 0
        print("demo: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has left; Python must not complain
        return 1
    if problem:
        print(f"demo: {problem}", file=sys.stderr)
    return int(bool(problem))


async def _run(names: Iterable[str], *, keep: bool) -> str:
    """What failed, in one sentence; empty if nothing did."""
    _cancel_on_signals()
    began, output = time.monotonic(), Output()
    problem = ""
    for name in names:
        problem = problem or await _run_show(name, output, keep=keep)
    if output.checks:
        output.summary(time.monotonic() - began)
    return problem or _failed(output.checks)


async def _run_show(name: str, output: Output, *, keep: bool) -> str:
    try:
        with temporary_home(keep=keep) as home:
            if keep:
                output.say(f"files and logs: {home}")
            async with asyncio.timeout(None if name == PAGE else SHOW_S):
                await _PARTS[name](home, output)
    except TROUBLE as error:
        return str(error)
    except TimeoutError:
        return f"the show {name!r} did not finish within {SHOW_S:g} s"
    return ""


def _failed(checks: Iterable[Check]) -> str:
    failed = [f"{check.promise}: {check.found}" for check in checks if not check.passed]
    more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
    return f"a check failed: {failed[0]}{more}" if failed else ""


def _cancel_on_signals() -> None:
    """The first signal cancels; later ones do nothing, so that a second Ctrl-C leaves no program behind."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, lambda: task.cancelling() or task.cancel())


if __name__ == "__main__":
    sys.exit(main())
