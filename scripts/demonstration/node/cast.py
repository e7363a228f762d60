"""The pods of the demo: what a small team would run on one node with eight GPUs.

In: nothing. Out: pods as users write them, and what each is to show. Invariant: all of them together fit, but for the
one that nobody could serve.
"""

from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]
NAMESPACE = "demo"
BLOCK_MIB = 256


@dataclass(frozen=True, slots=True)
class Ask:
    """One container's request; 0 blocks: none asked for."""

    container: str
    cores: int
    blocks: int = 0


@dataclass(frozen=True, slots=True)
class Role:
    """One pod; `init` runs to its end before the others."""

    name: str
    asks: tuple[Ask, ...]
    init: tuple[Ask, ...] = ()
    replica_set: str = ""
    shows: str = field(default="", compare=False)

    def __str__(self) -> str:
        """What it asks for, as a person says it."""
        cores, blocks = [ask.cores for ask in self.asks], sum(ask.blocks for ask in self.asks)
        gpus, rest = divmod(sum(cores), 100)
        if gpus and not rest:
            return "1 GPU" if gpus == 1 else f"{gpus} GPUs"
        text = f"{'+'.join(map(str, cores))} cores"
        return f"{text}, {blocks * BLOCK_MIB // 1024} GiB" if blocks else text

    def manifest(self) -> Json:
        metadata: Json = {"name": self.name, "namespace": NAMESPACE, "labels": {"app": self.replica_set or self.name}}
        if self.replica_set:
            owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": self.replica_set}
            metadata["ownerReferences"] = [owner | {"uid": f"uid-of-{self.replica_set}", "controller": True}]
        spec: Json = {"containers": [_container(ask) for ask in self.asks]}
        if self.init:
            spec["initContainers"] = [_container(ask) for ask in self.init]
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


COMPANY = (
    Role("notebook-ann", (Ask("jupyter", 30, 32),), shows="a share of a GPU"),
    Role("notebook-bob", (Ask("jupyter", 20, 16),), shows="joins the fullest GPU"),
    Role("inference", (Ask("server", 60, 96),), shows="opens the next GPU"),
    Role(
        "pipeline",
        (Ask("decode", 10, 16), Ask("serve", 25, 32)),
        init=(Ask("warm-up", 40, 16),),
        shows="init and two containers",
    ),
    Role("finetune", (Ask("train", 100),), shows="a whole GPU"),
    Role("pretrain", (Ask("train", 400),), shows="the four closest GPUs"),
)
IMPOSSIBLE = Role("typo", (Ask("train", 150),), shows="between one GPU and two")


GREEDY = (Role("greedy-ann", (Ask("slice", 20, 8),)), Role("greedy-bob", (Ask("slice", 50, 16),)))


def replica(number: int) -> Role:
    """One of the small servers that are being admitted when the agent is killed."""
    return Role(f"web-{number}", (Ask("nginx", 15, 20),), replica_set="web")


def _container(ask: Ask) -> Json:
    limits = {"tencent.com/vcuda-core": str(ask.cores)}
    if ask.blocks:
        limits["tencent.com/vcuda-memory"] = str(ask.blocks)
    return {"name": ask.container, "image": "registry.example/demo", "resources": {"limits": limits}}
