"""A parser with a fault that a guided search finds and blind luck does not: 4 bytes, each a branch of its own."""

from tests.container.fuzz.harness import run


def check(data: bytes) -> None:
    if data[:1] != b"v":
        return
    if data[1:2] != b"C":
        return
    if data[2:3] != b"u":
        return
    if data[3:4] == b"d":
        raise KeyError("planted")


if __name__ == "__main__":
    run(check)
