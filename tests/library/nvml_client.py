"""The other end of nvml_worker: NVML in a process of its own, so that each test meets a freshly loaded library."""

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

_WORKER = Path(__file__).with_name("nvml_worker.py")

Handle = dict[str, int]
Argument = int | str | list[int] | Handle | None
Answer = Any  # whatever pynvml returned: the tests know


class RefusedError(Exception):
    """NVML answered with an error; its number is `code`."""

    def __init__(self, name: str, code: int) -> None:
        super().__init__(f"{name}: NVML error {code}")
        self.code = code


@dataclass
class Nvml:
    """`nvml.nvmlDeviceGetCount()` and every other name of pynvml, called over there."""

    library: Path
    environment: dict[str, str]
    errors: Path
    process: subprocess.Popen[str] = field(init=False)

    def __enter__(self) -> Self:
        with self.errors.open("a") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(_WORKER), str(self.library)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=self.environment,
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()
        if self.process.stdout is not None:
            self.process.stdout.close()
        try:
            self.process.wait(timeout=10)
        finally:
            self.process.kill()

    def send(self, request: dict[str, Any]) -> None:
        """Asks without waiting for the answer, so that a test can act while a call blocks."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the process ended: {self.errors.read_text()}"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def call(self, name: str, *args: Argument) -> Answer:
        self.send({"call": name, "args": list(args)})
        answer = self.receive()
        if "error" in answer:
            raise RefusedError(name, answer["error"])
        return answer["value"]

    def become(self, uid: int) -> None:
        """Goes on as another user; needs root."""
        self.send({"become": uid})
        self.receive()

    def error(self, name: str, *args: Argument) -> int:
        """The number of the error that the call ends with; 0 where it does not fail."""
        try:
            self.call(name, *args)
        except RefusedError as refused:
            return refused.code
        return 0

    def raw(self, name: str, *args: Argument) -> tuple[int, list[int]]:
        self.send({"raw": name, "args": list(args)})
        answer = self.receive()
        return answer["code"], answer["outs"]

    def devices(self) -> list[Handle]:
        """Every GPU that can be reached, in NVML's order; initialises NVML."""
        self.call("nvmlInit")
        return [self.call("nvmlDeviceGetHandleByIndex", index) for index in range(self.call("nvmlDeviceGetCount"))]
