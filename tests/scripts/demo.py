"""`scripts/demo` as a process, as a user runs it.

In: arguments, a directory for its files. Out: how it ended and what it said.
"""

import asyncio
import os
import sys
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True)
class Run:
    """How it ended and what it said."""

    status: int
    out: str
    told: str

    def checks(self, mark: str) -> list[str]:
        """The lines of the checks with this mark, each without it."""
        lines = [line.strip() for line in self.out.splitlines()]
        return [line.removeprefix(mark) for line in lines if line.startswith(mark)]


async def start(
    *arguments: str, temporary: Path, program: tuple[str, ...] = ("-m", "scripts.demonstration")
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, *program, *arguments),
        cwd=REPOSITORY,
        env=os.environ | {"TMPDIR": str(temporary), "GRPC_VERBOSITY": "NONE"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def demo(*arguments: str, temporary: Path, changed: str = "") -> Run:
    """`changed` is Python that is run before, to break something."""
    program = ("-c", f"import sys\n{changed}\nfrom scripts.demonstration.__main__ import main\nsys.exit(main())")
    process = await start(*arguments, temporary=temporary, program=program)
    try:
        out, told = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return Run(process.returncode, out.decode(), told.decode())
