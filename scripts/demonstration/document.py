"""What `--output json` prints, and what the promises are checked against.

In: the pods as the API server shows them, the containers as kubelet started them. Out: plain frozen structs; their
field names are the document's. Nothing here comes from the agent, except the usage documents that are carried as they
are.
"""

import msgspec

from deviceplugin.observe.usage import Usage
from scripts.demonstration.cluster.findings import Cluster

VERSION = 1


class Mounted(msgspec.Struct, frozen=True):
    """A mount."""

    container_path: str
    host_path: str
    read_only: bool


class Device(msgspec.Struct, frozen=True):
    """A device node."""

    container_path: str
    host_path: str
    permissions: str


class SeenContainer(msgspec.Struct, frozen=True):
    """One container: what it asked for, what it was given, what it sees. `limits_file`: bytes of vcuda.config."""

    name: str
    init: bool
    cores: int
    blocks: int
    gpus: tuple[int, ...]
    core_ids: int
    memory_ids: int
    env: dict[str, str]
    mounts: tuple[Mounted, ...]
    devices: tuple[Device, ...]
    annotations: dict[str, str]
    limits_file: int


class SeenPod(msgspec.Struct, frozen=True):
    """One pod; `message` says why it was refused; `gpus`, `cores`, `blocks`: what its containers hold together."""

    namespace: str
    name: str
    uid: str
    phase: str
    message: str
    gpus: tuple[int, ...]
    cores: int
    blocks: int
    containers: tuple[SeenContainer, ...]


class Ledgers(msgspec.Struct, frozen=True):
    """The agent's `/usage` at the moments that matter."""

    before_kill: Usage
    after_restart: Usage
    at_the_end: Usage


class GreedyNvml(msgspec.Struct, frozen=True):
    """What NVML told the program of its GPU while it held its memory."""

    total_bytes: int
    used_bytes: int
    processes: int


class GreedyReport(msgspec.Struct, frozen=True):
    """The program's own line; library/programs/slice.c says what is in it."""

    total_bytes: int
    free_bytes: int
    got_bytes: int
    refusal: str
    launches: int
    unit_ns: int
    seconds: float
    share_percent: float
    nvml: GreedyNvml | None


class GreedyContainer(msgspec.Struct, frozen=True):
    """A container that took all it could get: what its pod asked for, what its limits file says, what it got.

    Cores are percent of the GPU's time; `held_bytes` is the most that the driver saw its process hold. For `cpu_wait_s`
    its threads were ready and had no processor: a program that does not run cannot use its share.
    """

    pod: str
    container: str
    cores: int
    blocks: int
    limit_cores: int
    limit_bytes: int
    got_cores: float
    held_bytes: int
    report: GreedyReport
    cpu_wait_s: float = 0.0


class Promise(msgspec.Struct, frozen=True):
    """One thing that must hold, and what was found."""

    promise: str
    held: bool
    found: str


class Verdict(msgspec.Struct, frozen=True):
    """`ok` if every promise held and the play came to its end; `problem` says in one sentence why not."""

    ok: bool = False
    problem: str = ""
    promises: tuple[Promise, ...] = ()


class Document(msgspec.Struct, frozen=True):
    """The whole; what a half that was not played would have found is empty or null.

    `ledger` is null where the node's half broke off before its end.
    """

    version: int
    profile: str = ""
    node: str = ""
    pods: tuple[SeenPod, ...] = ()
    refused: tuple[SeenPod, ...] = ()
    greedy: tuple[GreedyContainer, ...] = ()
    ledger: Ledgers | None = None
    seconds: dict[str, float] = {}
    cluster: Cluster | None = None
    verdict: Verdict = Verdict()
