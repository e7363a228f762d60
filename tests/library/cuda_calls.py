"""A process of the tests that makes CUDA calls, by the driver's own names.

In: numbers and buffers, in main or another thread. Out: what the call left in its buffers; an error raises `CudaError`.
Not here: short names of calls (cuda_client.py, memory_client.py), what is right.
"""

from typing import Any

from tests.library.worker import Worker

Argument = int | dict[str, Any] | None


class CudaError(Exception):
    """The driver answered with an error; its number is `code`."""

    def __init__(self, name: str, code: int) -> None:
        super().__init__(f"{name}: CUDA error {code}")
        self.code = code


def room(size: int) -> dict[str, Any]:
    return {"room": size}


def pointer_to(data: bytes) -> dict[str, Any]:
    return {"bytes": data.hex()}


class CudaWorker(Worker):
    """`thread`: the one that makes the call; the main one by default."""

    script = "cuda_worker.py"
    options = ("-S",)

    def code(self, name: str, *args: Argument, thread: str = "") -> int:
        """The number that the call answers with."""
        return int(self.ask(call=name, args=list(args), thread=thread)["code"])

    def __call__(self, name: str, *args: Argument, thread: str = "") -> list[bytes]:
        """Every buffer among the arguments, as the call left it."""
        answer = self.ask(call=name, args=list(args), thread=thread)
        if answer["code"] != 0:
            raise CudaError(name, answer["code"])
        return [bytes.fromhex(out) for out in answer["outs"]]

    def get(self, name: str, *args: Argument, size: int = 8, thread: str = "") -> int:
        """A call whose first argument returns a number."""
        return int.from_bytes(self(name, room(size), *args, thread=thread)[0], "little")

    def begin(self, device: int = 0) -> int:
        """Initialises the driver and makes the device's primary context current."""
        self("cuInit", 0)
        context = self.get("cuDevicePrimaryCtxRetain", device)
        self("cuCtxSetCurrent", context)
        return context
