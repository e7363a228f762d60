"""A pod that asks for nothing of ours and runs on a node: it takes CPU and memory beside the GPUs.

In: `kube.plain_pods` decodes it. There may be a hundred thousand of them, so there is nothing here that is not needed.
"""

from dataclasses import dataclass

from deviceplugin.model.allocation import PodUid
from deviceplugin.model.compute import Compute


@dataclass(frozen=True, slots=True)
class PlainPod:
    """`needs` is None where it cannot be read."""

    uid: PodUid
    node: str
    needs: Compute | None
