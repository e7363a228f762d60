"""Faults, one at a time: programs killed and stopped, GPUs lost, disks full, files damaged, rights taken away.

In: the node, a source of random numbers. Out: faults done and undone, counted by name. Not here: when (`soak`), and
what must hold meanwhile.
Invariant: after `inject` the cause is gone, however it ended; programs may still be starting.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import urllib3

from sandbox.cluster.client import ApiError
from sandbox.cluster.processes import Process
from sandbox.cluster.waiting import wait_until
from tests.e2e.node.agent import shipped_rules
from tests.e2e.soak.node import Node
from tests.offered import blocks_of_each

UNREACHABLE = (ApiError, urllib3.exceptions.HTTPError, OSError)
"""What a call to the API server may raise while it is away."""
LONGEST_STOP_S = 8.0
LONGEST_AWAY_S = 2.0
TARGETS = ("agent", "kubelet", "scheduler", "kube-scheduler", "API server", "containerd")
RIGHTS = (("nodes/pods",), ("pods",), ("nodes/pods", "pods"))
"""Taken from the agent: the sources of identity fail, one or all."""
CHUNK = bytes(1 << 18)


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong for a while; it returns when the cause is gone."""

    name: str
    inject: Callable[[Random], None]
    damages_checkpoint: bool = False


@dataclass(slots=True)
class Supervisor:
    """Starts again what has ended by itself, as kubelet and an init system do; `ended` counts it."""

    node: Node
    ended: dict[str, int] = field(default_factory=dict)

    def look(self) -> None:
        for name, process in self.node.programs.items():
            if not process.is_running():
                self.ended[name] = self.ended.get(name, 0) + 1
                process.start()


def faults_of(node: Node) -> list[Fault]:
    killed = [Fault(f"SIGKILL {name}", _killer(node.programs[name])) for name in TARGETS]
    stopped = [Fault(f"SIGSTOP {name}", _stopper(node.programs[name])) for name in TARGETS]
    damaged = [
        Fault(f"kubelet's checkpoint {name}", _damager(node, damage), damages_checkpoint=True)
        for name, damage in DAMAGES.items()
    ]
    return [
        *killed,
        *stopped,
        *damaged,
        Fault("GPU lost", lambda rng: _lose_a_gpu(node, rng)),
        Fault("journal's disk full", lambda rng: _fill(node.journal, rng)),
        Fault("grants' disk full", lambda rng: _fill(node.grants, rng)),
        Fault("rights taken away", lambda rng: _take_rights(node, rng)),
    ]


def choose(faults: Sequence[Fault], rng: Random, before: str) -> Fault:
    """Any but the one before it."""
    return rng.choice([each for each in faults if each.name != before])


def _killer(process: Process) -> Callable[[Random], None]:
    def kill(rng: Random) -> None:
        with _away(process, rng):
            pass

    return kill


@contextmanager
def _away(process: Process, rng: Random) -> Iterator[None]:
    process.kill()
    try:
        yield
        time.sleep(rng.uniform(0, LONGEST_AWAY_S))
    finally:
        process.start()


def _stopper(process: Process) -> Callable[[Random], None]:
    def stop(rng: Random) -> None:
        with process.paused():
            time.sleep(rng.uniform(1, LONGEST_STOP_S))

    return stop


def _damager(node: Node, damage: Callable[[bytes, Random], bytes]) -> Callable[[Random], None]:
    """Kubelet reads the file only when it starts, and writes it at each Allocate."""

    def restart_with_damage(rng: Random) -> None:
        with _away(node.cluster.kubelet.process, rng):
            file = node.kubelet_checkpoint
            file.write_bytes(damage(file.read_bytes() if file.exists() else b"", rng))

    return restart_with_damage


DAMAGES: dict[str, Callable[[bytes, Random], bytes]] = {
    "truncated": lambda content, rng: content[: rng.randrange(max(1, len(content)))],
    "zeroed": lambda content, _: bytes(len(content)),
    "garbage": lambda content, rng: rng.randbytes(len(content)),
}


def _lose_a_gpu(node: Node, rng: Random) -> None:
    gpu = rng.randrange(len(blocks_of_each(node.agent.gpus.profile)))
    node.agent.gpus.lose(gpu)
    try:
        time.sleep(rng.uniform(2, LONGEST_STOP_S))
    finally:
        node.agent.gpus.command("recover", gpu)


def _fill(folder: Path, rng: Random) -> None:
    filler = folder / "filler"
    try:
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:  # until there is no room
            while True:
                file.write(CHUNK)
        time.sleep(rng.uniform(2, LONGEST_STOP_S))
    finally:
        filler.unlink(missing_ok=True)


def _take_rights(node: Node, rng: Random) -> None:
    identity = node.agent.identity
    without = rng.choice(RIGHTS)
    try:
        identity.permit(shipped_rules(without=without))
        time.sleep(rng.uniform(2, LONGEST_STOP_S))
    finally:
        wait_until(lambda: _permitted(node), "the agent has its rights again")


def _permitted(node: Node) -> bool:
    try:
        node.agent.identity.permit(shipped_rules())
    except UNREACHABLE:
        return False
    return True
