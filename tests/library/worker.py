"""A process of the tests that answers lines of JSON with lines of JSON: *_worker.py on its side, Worker on this one.

In: the library that it loads, its environment, and a file for its stderr. Out: answers; a process that ended instead
fails the test with what it wrote there. Not here: what can be asked.
"""

import json
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self


@dataclass
class Worker:
    """`with` starts the process and ends it. `script` and `options` of the interpreter are the kind's own."""

    script: ClassVar[str]
    options: ClassVar[tuple[str, ...]] = ()

    library: Path
    environment: dict[str, str]
    errors: Path
    process: subprocess.Popen[str] = field(init=False)

    def __enter__(self) -> Self:
        script = Path(__file__).with_name(self.script)
        with self.errors.open("a") as errors:
            self.process = subprocess.Popen(
                [sys.executable, *self.options, str(script), str(self.library)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=self.environment,
            )
        try:
            self.prepare()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        try:
            self.process.wait(timeout=10)
        finally:
            self.process.kill()

    def prepare(self) -> None:
        """What a kind asks for before its test does."""

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(timeout=10)

    def tell(self, **request: Any) -> None:
        """Asks without waiting for the answer, so that a test can act while a call blocks."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()

    def listen(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the process ended: {self.errors.read_text()}"
        return json.loads(line)

    def ask(self, **request: Any) -> Any:
        self.tell(**request)
        return self.listen()
