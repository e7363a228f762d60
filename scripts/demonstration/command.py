"""`scripts/demo [--only node|cluster] [--output json] [--keep]`: no cluster, no GPU, less than a minute.

Out: the show on stdout, or exactly one JSON document there and the show on stderr. Exit 1 with one line on stderr when
anything is not as promised.
"""

import argparse
import asyncio
import contextlib
import itertools
import os
import signal
import sys

import msgspec
from rich.console import Console

from scripts.demonstration.document import VERSION, Document, Verdict
from scripts.demonstration.failure import TROUBLE
from scripts.demonstration.halves import HALVES, Half
from scripts.demonstration.show import WIDTH, Show


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/demo", description="vcuda at work, without a GPU and a cluster.")
    parser.add_argument("--only", choices=tuple(HALVES), help="one half: a node with eight GPUs, or a cluster")
    parser.add_argument("--output", choices=("text", "json"), default="text", help="json: one document on stdout")
    parser.add_argument("--keep", action="store_true", help="keep the directory with all files and logs")
    given = parser.parse_args()
    as_json = given.output == "json"
    halves = [HALVES[given.only]] if given.only else list(HALVES.values())
    try:
        document = asyncio.run(_perform(_console(as_json=as_json), halves, keep=given.keep))
    except asyncio.CancelledError:
        print("demo: interrupted", file=sys.stderr)
        return 130
    except TROUBLE as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # whoever read has left; nobody is to be told
        return 1
    if as_json:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
    if not document.verdict.ok:
        print(f"demo: {document.verdict.problem}", file=sys.stderr)
        return 1
    return 0


def _console(*, as_json: bool) -> Console:
    """As wide as the terminal, but not wider than it reads well; a file gets the full width."""
    console = Console(stderr=as_json, highlight=False)
    console.width = min(WIDTH, console.width) if console.is_terminal else WIDTH
    return console


async def _perform(console: Console, halves: list[Half], *, keep: bool) -> Document:
    _end_in_order()
    numbers = itertools.count(1)
    found = Document(VERSION)
    for place, half in enumerate(halves):
        if place:
            console.print()
        found = await half(found, console, numbers, keep=keep)
        if found.verdict.problem:
            break
    promises = found.verdict.promises
    if promises:
        show = Show(console, numbers)
        show.act("What was promised")
        show.promises(promises)
    return msgspec.structs.replace(found, verdict=_verdict(found.verdict))


def _verdict(found: Verdict) -> Verdict:
    broken = [f"it is not true that {item.promise}: {item.found}" for item in found.promises if not item.held]
    more = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
    problem = found.problem or (broken[0] + more if broken else "")
    return Verdict(not problem, problem, found.promises)


def _end_in_order() -> None:
    """However it is to end, once is enough: a second Ctrl-C must not leave anything running."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    asked = False

    def end() -> None:
        nonlocal asked
        if not asked:
            asked = True
            task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, end)
