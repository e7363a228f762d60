"""Which pods are written for HAMi.

In: a pod, HAMi's names in this cluster. Out: yes or no, and what HAMi would be told by it that we cannot do. A number
of GPUs alone says nothing, for NVIDIA's device plugin has the same resource: with `every` off it takes something that
only HAMi reads. `conditions` says the same to the API server, and a test holds the two together.
"""

from deviceplugin.cluster.webhook.pod_json import Json, annotations, containers, spec
from deviceplugin.cluster.webhook.resources import names_any
from deviceplugin.config.webhook import HamiSettings
from deviceplugin.errors import RequestError
from deviceplugin.model.preferences import FOREIGN

HAMI_SCHEDULER = "hami-scheduler"
HAMI_PREFIX = "hami.io/"
_MODE, _OUR_MODE = "nvidia.com/vgpu-mode", "hami-core"
_BY_INDEX = ("nvidia.com/use-gpuindexes", "nvidia.com/nouse-gpuindexes")
HAMI_ANNOTATIONS = tuple(sorted(each for each in (*FOREIGN, _MODE, *_BY_INDEX) if not each.startswith(HAMI_PREFIX)))
"""Named one by one, for `nvidia.com/` has others."""


def is_for_hami(pod: Json, hami: HamiSettings) -> bool:
    found = list(containers(pod))
    if any(names_any(each, hami.marks) for each in found):
        return True
    return any(names_any(each, (hami.count,)) for each in found) and (hami.every or _is_marked(pod))


def _is_marked(pod: Json) -> bool:
    if spec(pod).get("schedulerName") == HAMI_SCHEDULER:
        return True
    return any(name in HAMI_ANNOTATIONS or name.startswith(HAMI_PREFIX) for name in annotations(pod))


def unread(pod: Json, *, use_gpus: str) -> tuple[str, ...]:
    """Warnings about wishes that are not followed here; RequestError where the pod would get something else."""
    written = annotations(pod)
    mode = written.get(_MODE)
    if mode is not None and _OUR_MODE not in mode:
        raise RequestError(
            f"annotation {_MODE} holds {ascii(mode)[:40]}, and GPUs are divided here as with {_OUR_MODE}; write "
            f"{_OUR_MODE} or leave it out"
        )
    by_index = [name for name in _BY_INDEX if name in written]
    return tuple(f"annotation {name} is not read; name GPUs by UUID in {use_gpus}" for name in by_index)
