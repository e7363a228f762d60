"""What one question costs, counted in executed lines of Python and so the same on every machine, busy or not.

In: an awaitable or a call. Out: how many lines ran between two turns of the loop at most, and in all. Only lines of
`deviceplugin` count: what C code does is linear in its bytes, and each of its calls stands on such a line.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

_PRODUCT = str(Path(__file__).resolve().parents[2] / "deviceplugin")


@dataclass(slots=True)
class Cost:
    """Lines; `longest` is the most between two turns of the event loop."""

    longest: int = 0
    total: int = 0


def cost_of(question: Callable[[], Awaitable[object]]) -> Cost:
    """Runs the question on a loop of its own."""
    found, lines = Cost(), 0
    ours: dict[CodeType, bool] = {}

    def in_frame(_frame: FrameType, event: str, _arg: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return in_frame

    def in_call(frame: FrameType, _event: str, _arg: Any) -> Any:
        code = frame.f_code
        if code not in ours:
            ours[code] = code.co_filename.startswith(_PRODUCT)
        return in_frame if ours[code] else None

    def turn_ended() -> None:
        nonlocal lines
        found.longest, found.total, lines = max(found.longest, lines), found.total + lines, 0

    async def run() -> None:
        asked = asyncio.ensure_future(question())
        while not asked.done():
            await asyncio.sleep(0)
            turn_ended()
        await asked

    before = sys.gettrace()
    sys.settrace(in_call)
    try:
        asyncio.run(run())
    finally:
        sys.settrace(before)
    turn_ended()
    return found
