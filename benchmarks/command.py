"""Common parts of all benchmark commands: options, a folder for their files, output, and the end on errors.

In: the docstring of a module and a function that measures. Out: figures as text or JSON with exit status 0, or one
sentence on standard error with exit status 1; never a partial document. `VCUDA_DEBUG=1` shows the traceback of an
error.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from deviceplugin.errors import one_line

Figures = Mapping[str, object]


class BenchmarkError(Exception):
    """Nothing can be measured; the message is one sentence."""


def options(description: str | None) -> argparse.ArgumentParser:
    """`--short` is for tests: it runs every part once with small sizes, so its figures mean nothing."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", choices=["text", "json"], default="text")
    parser.add_argument(
        "--short", action="store_true", help="run for a few seconds to try the program; the figures mean nothing"
    )
    return parser


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Below /tmp, because paths of sockets are short; with VCUDA_BENCHMARK_KEEP it stays."""
    folder = Path(tempfile.mkdtemp(prefix="vb-", dir="/tmp"))
    try:
        yield folder
    finally:
        if "VCUDA_BENCHMARK_KEEP" not in os.environ:
            shutil.rmtree(folder, ignore_errors=True)


def make(folder: Path) -> None:
    """Brings it up to date. What that says goes to standard error: standard output is for the figures."""
    subprocess.run(["make", "--silent", "-C", str(folder)], check=True, stdout=2)


def show(figures: Figures, output: str) -> None:
    """One figure a line, or one JSON object."""
    if output == "json":
        print(json.dumps(figures))
        return
    width = max(map(len, figures))
    for name, value in figures.items():
        print(f"{name:{width}} {value:14.3f}" if isinstance(value, float) else f"{name:{width}} {value!s:>14}")


def announce(word: object) -> None:
    """One line, at once, to the process that started this one; it may be gone, and then ends this one too.

    Past Python's buffer: what could not be written would be tried again at the end.
    """
    with suppress(BrokenPipeError):
        os.write(sys.stdout.fileno(), f"{word}\n".encode())


def ends_in_one_sentence(main: Callable[[], int | None], *, status: int = 1) -> None:
    """Runs a benchmark and exits with what it returns; an error ends it with one sentence and `status`.

    SIGTERM interrupts it like SIGINT, so that it ends the processes that it started: also one whose start the signal
    interrupted, before `main` knew of it.
    """
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        _end_children()
        _end("interrupted", status)
    except Exception as error:
        if os.environ.get("VCUDA_DEBUG"):
            raise
        _end(f"{_sentence(error)}; VCUDA_DEBUG=1 shows where", status)


def _end_children() -> None:
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended meanwhile
            if int(path.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                os.kill(int(path.parent.name), signal.SIGKILL)


def _end(sentence: str, status: int) -> None:
    print(f"benchmark: {sentence}", file=sys.stderr)
    sys.exit(status)


def _sentence(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = one_line(str(error), most=1000)
    return text if text and not isinstance(error, (KeyError, AttributeError)) else f"{type(error).__name__} {text}"
