"""`vcuda ui` as a process that opens no browser.

In: words of its command line. Out: the address that it prints. Invariant: at the end it is stopped as by Ctrl-C, and
has said nothing on standard error.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.waiting import PATIENCE_S

PROGRAM = Path(sys.executable).with_name("vcuda")


@asynccontextmanager
async def started(*words: str, token: str = "") -> AsyncIterator[str]:
    process = await asyncio.create_subprocess_exec(
        *(str(PROGRAM), "ui", "--no-browser", *words),
        env={**os.environ, "VCUDA_TOKEN": token},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE_S):
            address = (await process.stdout.readline()).decode().strip()
        yield address
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = await process.communicate()
        assert (process.returncode, errors) == (0, b""), errors
