"""The labels and the inventory annotation of this node in the API server.

In: the inventory, whenever it changes, and labels of the operator. Out: a patch of the node if something differs. A
label that the agent set and no longer wants is removed; an annotation lists them, because a restarted agent may have
other flags. Kubelet may write that annotation as well, so no label of Kubernetes' own domains is removed, from which
the API server keeps kubelets. A failed patch is repeated with back-off. A periodic check repairs what others changed.
A node with different GPUs has the value `mixed`; the annotation has the details. gpu-manager's label
`gaia.tencent.com/gpu-model` is the second word of the first GPU's name (`Tesla P40` gives `P40`).
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress

import msgspec
import structlog

from deviceplugin.backoff import Backoff
from deviceplugin.errors import VcudaError
from deviceplugin.kube.client import KubeClient, NodeMetadata
from deviceplugin.model.annotation_names import annotation_names
from deviceplugin.model.gpu import Inventory
from deviceplugin.model.node import MOST_GPUS, format_inventory
from deviceplugin.model.units import MIB, ResourceNames

GPU_MANAGER_MODEL = "gaia.tencent.com/gpu-model"
MIXED = "mixed"
_MOST = 63
_OF_KUBERNETES = (".kubernetes.io", ".k8s.io")
_REFUSED = re.compile(r"[^A-Za-z0-9_.-]+")
log = structlog.get_logger("vcuda.kube")


def gpu_labels(inventory: Inventory, *, domain: str, extra: Mapping[str, str]) -> dict[str, str]:
    """Model, count, MiB of one GPU, driver and CUDA version.

    `extra` takes precedence, but for gpu-manager's label without a value: there it asks for the model.
    """
    labels: dict[str, str] = {}
    if inventory.gpus:
        labels = {
            f"{domain}/gpu-model": label_value(_one([gpu.model for gpu in inventory.gpus])),
            f"{domain}/gpu-count": str(len(inventory.gpus)),
            f"{domain}/gpu-memory": _one([str(gpu.memory_bytes // MIB) for gpu in inventory.gpus]),
            f"{domain}/gpu-driver": label_value(inventory.driver.version),
            f"{domain}/gpu-cuda": "{}.{}".format(*inventory.driver.cuda),
            GPU_MANAGER_MODEL: label_value(_second_word(inventory.gpus[0].model)),
        }
    return labels | {key: label_value(value) for key, value in extra.items() if value or key != GPU_MANAGER_MODEL}


def label_value(text: str) -> str:
    """At most 63 letters, digits, `-`, `_` and `.`.

    The first and last are letters or digits; other characters become `-`.
    """
    return _REFUSED.sub("-", text).strip("-_.")[:_MOST].strip("-_.")


def _one(values: Sequence[str]) -> str:
    return values[0] if len(set(values)) == 1 else MIXED


def _second_word(model: str) -> str:
    words = model.split()
    return words[1] if len(words) > 1 else model


class PublishTiming(msgspec.Struct, frozen=True):
    """Seconds: between checks, and the bounds of the back-off."""

    check: float = 300.0
    first_wait: float = 1.0
    most_wait: float = 60.0


DEFAULT_TIMING = PublishTiming()


def node_patch(node: NodeMetadata, face: NodeMetadata, *, own_labels: str) -> NodeMetadata:
    """What of `face` the node lacks; `own_labels` is the annotation that lists the labels which the agent set."""
    before = {key for key in (node.annotations.get(own_labels) or "").split(",") if key and not _is_of_kubernetes(key)}
    labels: dict[str, str | None] = {key: None for key in sorted(before - set(face.labels)) if key in node.labels}
    labels |= {key: value for key, value in face.labels.items() if node.labels.get(key) != value}
    wanted = {**face.annotations, own_labels: ",".join(sorted(face.labels))}
    return NodeMetadata(labels, {key: value for key, value in wanted.items() if node.annotations.get(key) != value})


def _is_of_kubernetes(label: str) -> bool:
    return f".{label.partition('/')[0]}".endswith(_OF_KUBERNETES)


class NodePublisher:
    """`show` returns at once, `run` writes until it is cancelled; `labels` are those of the operator."""

    def __init__(
        self,
        client: KubeClient,
        *,
        node: str,
        names: ResourceNames,
        labels: Mapping[str, str],
        share_mode: bool,
        pace: PublishTiming = DEFAULT_TIMING,
    ) -> None:
        self._client = client
        self._node = node
        self._names = annotation_names(names.domain)
        self._labels = labels
        self._share_mode = share_mode
        self._pace = pace
        self._face: NodeMetadata | None = None
        self._too_many = 0
        self._wanted = asyncio.Event()

    def show(self, inventory: Inventory) -> None:
        face = NodeMetadata(
            gpu_labels(inventory, domain=self._names.domain, extra=self._labels),
            {self._names.inventory: format_inventory(inventory, share_mode=self._share_mode)},
        )
        if face != self._face:
            self._face = face
            self._wanted.set()
            self._say_if_too_many(len(inventory.gpus))

    def _say_if_too_many(self, gpus: int) -> None:
        if gpus > MOST_GPUS and gpus != self._too_many:
            sentence = (
                f"this node has {gpus} GPUs and vcuda's scheduler reads an inventory of at most {MOST_GPUS}, so it "
                "places no pod here; use another device plugin on this node"
            )
            log.error("too_many_gpus", node=self._node, error=sentence)
        self._too_many = gpus

    async def run(self) -> None:
        """Never returns, and never raises because of the server."""
        backoff = Backoff(first=self._pace.first_wait, most=self._pace.most_wait)
        await self._wanted.wait()
        while True:
            self._wanted.clear()
            try:
                await self._write()
            except VcudaError as error:
                wait = backoff.next()
                log.warning("node_update_failed", node=self._node, error=error.message, retry_in_s=round(wait, 1))
                await asyncio.sleep(wait)  # also if the inventory changes meanwhile
            else:
                backoff.reset()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._pace.check):
                        await self._wanted.wait()

    async def _write(self) -> None:
        face = self._face
        assert face is not None
        patch = node_patch(await self._client.get_node(self._node), face, own_labels=self._names.node_labels)
        if not patch.labels and not patch.annotations:
            return
        await self._client.patch_node(self._node, patch)
        log.info("node_updated", node=self._node, labels=sorted(patch.labels), annotations=sorted(patch.annotations))
