"""`scripts/demo [--output json] [--keep]`: no cluster, no GPU, one minute.

Out: the show on stdout, or exactly one JSON document there and the show on stderr. Exit 1 with one line on stderr when
anything is not as promised.
"""

import argparse
import asyncio
import signal
import sys

import msgspec
from rich.console import Console

from scripts.demonstration.acts import Play
from scripts.demonstration.document import Document
from scripts.demonstration.failure import TROUBLE
from scripts.demonstration.show import WIDTH, Show
from scripts.demonstration.stage import set_up

PLAY_S = 60.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/demo", description="Shares eight emulated GPUs between pods.")
    parser.add_argument("--output", choices=("text", "json"), default="text", help="json: one document on stdout")
    parser.add_argument("--keep", action="store_true", help="keep the directory with all files and the agent's log")
    given = parser.parse_args()
    as_json = given.output == "json"
    show = Show(Console(stderr=as_json, width=WIDTH, highlight=False))
    try:
        document = asyncio.run(_perform(show, keep=given.keep))
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("demo: interrupted", file=sys.stderr)
        return 130
    except TROUBLE as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    if as_json:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
    if not document.verdict.ok:
        print(f"demo: {document.verdict.problem}", file=sys.stderr)
        return 1
    return 0


async def _perform(show: Show, *, keep: bool) -> Document:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    show.title(
        "vcuda demo: eight emulated A100 GPUs, shared between pods",
        "The agent is the real one. The driver is emulated; kubelet and the API server are stand-ins.",
    )
    async with set_up(keep=keep) as stage:
        play = Play(stage, show)
        problem = ""
        try:
            async with asyncio.timeout(PLAY_S):
                await play.perform()
        except TROUBLE as error:
            problem = str(error)
        except TimeoutError:
            problem = f"the demo was not over after {PLAY_S:g} s"
        document = play.document(problem)
    if document.verdict.promises:
        show.act(6, "What was promised")
        show.promises(document.verdict.promises)
    if keep:
        show.say(f"[dim]everything is kept in {stage.home}[/]")
    return document


if __name__ == "__main__":
    sys.exit(main())
