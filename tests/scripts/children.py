"""Runs of the repository's own scripts that a test starts.

In: the environment of the run that tries this. Out: one for a run of its own.
Invariant: what .ci/run, a lane or pytest tells the processes that it starts ends at the test: rows of the test's run
do not come into CI's table (VCUDA_LANES), and it builds and chooses as it does by itself (VCUDA_BUILD, VCUDA_THOROUGH,
PYTEST_ADDOPTS, PYTEST_XDIST_WORKER). That CI repeats its examples (CI, PYTHONHASHSEED) holds for it, too.
"""

import os


def environment(**more: str) -> dict[str, str]:
    """Without what belongs to the run that goes on."""
    return {name: text for name, text in os.environ.items() if not name.startswith(("VCUDA_", "PYTEST_"))} | more
