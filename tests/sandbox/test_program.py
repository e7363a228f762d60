"""What programs of the sandbox are started with."""

import json
import subprocess
import sys

from sandbox.program import free_port

_TRY = """
import json, sys
from sandbox.program import _is_reserved
print(json.dumps([*map(_is_reserved, json.load(sys.stdin))]))
"""


def test_a_port_is_given_out_once_as_long_as_its_owner_lives() -> None:
    mine = [free_port() for _ in range(20)]
    assert len(set(mine)) == 20
    other = subprocess.run(
        [sys.executable, "-c", _TRY], input=json.dumps(mine), capture_output=True, text=True, check=True
    )
    assert json.loads(other.stdout) == [False] * 20
    script = "from sandbox.program import free_port; print(free_port())"
    ended = int(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout)
    again = subprocess.run(
        [sys.executable, "-c", _TRY], input=json.dumps([ended]), capture_output=True, text=True, check=True
    )
    assert json.loads(again.stdout) == [True], "its owner has ended"
