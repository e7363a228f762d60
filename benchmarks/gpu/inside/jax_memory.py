"""Fills the GPU through JAX until it is refused. Out: one line of JSON, as torch_memory's.

JAX keeps what it once took, and by default takes three quarters at its start: `overhead` is all that it did not get to.
"""

# mypy: disable-error-code="import-not-found"

import json
import os
from typing import Any

import jax
import jax.numpy as jnp

BLOCK = 64 << 20


def fill(held: list[Any], most: int = 1 << 30) -> int | str:
    while len(held) < most:
        try:
            held.append(jnp.zeros(BLOCK, dtype=jnp.uint8).block_until_ready())
        except jax.errors.JaxRuntimeError as error:
            return 2 if "RESOURCE_EXHAUSTED" in str(error) else str(error)[:200]
    return 0


def main() -> dict[str, Any]:
    limit = jax.devices()[0].memory_stats()["bytes_limit"]
    held: list[Any] = []
    refusal = fill(held)
    count = len(held)
    del held[-8:]
    fill(held, count)
    again = count - len(held)
    held.clear()
    runs = int(jnp.ones(1024).sum().item() == 1024)
    printed = {"got": BLOCK * count, "refusal": refusal, "refused_again": again, "kernel_runs": runs}
    preallocated = os.environ.get("XLA_PYTHON_CLIENT_PREALLOCATE") == "true"
    return printed | {"overhead": limit if preallocated else limit // 3, "bytes_limit": limit}


if __name__ == "__main__":
    print(json.dumps(main()))
