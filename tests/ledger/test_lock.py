"""One agent per node: the lock keeps a second process out and ends with its holder, however that ends."""

import subprocess
import sys
from pathlib import Path

import pytest

from deviceplugin.errors import LedgerError
from deviceplugin.ledger.durable_files import agent_lock

_ROOT = Path(__file__).parents[2]
_HOLD = """
import sys
from pathlib import Path
from deviceplugin.ledger.durable_files import agent_lock
with agent_lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def holder(directory: Path) -> "subprocess.Popen[str]":
    """Another process that holds the lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(directory)],
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_second_process_learns_the_lock_holder_and_gets_the_lock_when_it_is_killed(short_tmp: Path) -> None:
    with holder(short_tmp) as process:
        refused = pytest.raises(LedgerError, match=rf"another vcuda agent \(process {process.pid}\) runs on this node")
        with refused, agent_lock(short_tmp):
            pass
        process.kill()
        process.wait(timeout=10)
    with agent_lock(short_tmp):
        pass


def test_the_lock_is_given_back_at_the_end_of_the_block(short_tmp: Path) -> None:
    directory = short_tmp / "new"
    with agent_lock(directory), pytest.raises(LedgerError, match="another vcuda agent"), agent_lock(directory):
        pass
    with agent_lock(directory):
        pass


def test_a_child_of_the_agent_does_not_keep_the_lock(short_tmp: Path) -> None:
    with agent_lock(short_tmp):
        child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    with child, agent_lock(short_tmp):
        pass


def test_a_lock_whose_holder_wrote_no_pid_is_still_one_sentence(short_tmp: Path) -> None:
    with agent_lock(short_tmp) as lock:
        lock.write_text("not a number")
        with pytest.raises(LedgerError, match="another vcuda agent runs on this node"), agent_lock(short_tmp):
            pass


def test_a_directory_that_cannot_be_used_is_one_sentence(short_tmp: Path) -> None:
    (short_tmp / "file").write_text("")
    refused = pytest.raises(LedgerError, match="cannot be opened: not a directory")
    with refused, agent_lock(short_tmp / "file"):
        pass
