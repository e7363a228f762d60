"""The other end of nvml_worker: NVML in a process of its own, so that each test meets a freshly loaded library."""

from typing import Any

from tests.library.worker import Worker

Handle = dict[str, int]
Argument = int | str | list[int] | Handle | None
Answer = Any  # whatever pynvml returned: the tests know


class RefusedError(Exception):
    """NVML answered with an error; its number is `code`."""

    def __init__(self, name: str, code: int) -> None:
        super().__init__(f"{name}: NVML error {code}")
        self.code = code


class Nvml(Worker):
    """`nvml.nvmlDeviceGetCount()` and every other name of pynvml, called over there."""

    script = "nvml_worker.py"

    def call(self, name: str, *args: Argument) -> Answer:
        answer = self.ask(call=name, args=list(args))
        if "error" in answer:
            raise RefusedError(name, answer["error"])
        return answer["value"]

    def become(self, uid: int) -> None:
        """Goes on as another user; needs root."""
        self.ask(become=uid)

    def error(self, name: str, *args: Argument) -> int:
        """The number of the error that the call ends with; 0 where it does not fail."""
        try:
            self.call(name, *args)
        except RefusedError as refused:
            return refused.code
        return 0

    def raw(self, name: str, *args: Argument) -> tuple[int, list[int]]:
        answer = self.ask(raw=name, args=list(args))
        return answer["code"], answer["outs"]

    def devices(self) -> list[Handle]:
        """Every GPU that can be reached, in NVML's order; initialises NVML."""
        self.call("nvmlInit")
        return [self.call("nvmlDeviceGetHandleByIndex", index) for index in range(self.call("nvmlDeviceGetCount"))]
