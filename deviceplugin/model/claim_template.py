"""The ResourceClaimTemplate that stands for a container's request, for pods that are written for the device plugin.

In: a request, the GPUs that the pod accepts. Out: the template's name, which says all of its content, and its spec; or
a RequestError where Kubernetes would refuse it, so that the webhook says so before anything waits for it. Pure. Two
programs use it: the webhook refers pods to a name, and the scheduler makes what the name says. Neither needs the other:
a template is the same for every pod, and it does not matter who makes it.
"""

import hashlib
import json
import re
from dataclasses import dataclass

from deviceplugin.errors import ParseError, RequestError
from deviceplugin.model.claims import ClaimNames
from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.preferences import ANY_GPU, GpuFilter
from deviceplugin.model.request import Request
from deviceplugin.model.units import BLOCK_MIB, CORES_PER_GPU

REQUEST = "gpu"
MOST_DEVICES = 32
"""Of a claim: AllocationResultsMaxSize (k8s.io/api/resource/v1, types.go)."""
LONGEST_SELECTOR = 10 << 10
"""In bytes: CELSelectorExpressionMaxLength (there)."""
MOST_TEMPLATES = 64
"""That vcuda makes for one pod; containers of the same size have the same one."""
TEMPLATE_PREFIX = "vcuda-"
_NAME = re.compile(r"vcuda-(\d{1,4})x(\d{1,3})c(\d{1,5})b(?:-[0-9a-f]{10})?")


@dataclass(frozen=True, slots=True)
class ClaimSize:
    """`gpus` equal parts. Of whole GPUs, which have 100 cores, `blocks` is the least that each must have."""

    gpus: int
    cores: int
    blocks: int

    @classmethod
    def of(cls, request: Request) -> "ClaimSize":
        return cls(request.gpus, request.cores_per_gpu, request.blocks_per_gpu)

    @property
    def is_whole(self) -> bool:
        return self.cores == CORES_PER_GPU


def claim_label(domain: str) -> str:
    """Of pods that were turned to claims, and of the templates that are kept for them; its value is `true`."""
    return f"{domain}/vcuda-claims"


def is_template_name(name: str) -> bool:
    """Whether vcuda gives such names."""
    return _NAME.fullmatch(name) is not None


class NamedTemplates:
    """The templates of a pod that accepts these GPUs, by their names.

    What takes long, the digest and the selectors, is made once, not for each size. RequestError for GPUs that take more
    room in a claim than Kubernetes has.
    """

    def __init__(self, wanted: GpuFilter, names: ClaimNames) -> None:
        self._names = names
        self._one_numa = wanted.one_numa
        self._selectors = _selectors(wanted, names.driver)
        self._digest = "" if wanted == ANY_GPU else f"-{_digest(wanted)}"

    def name(self, size: ClaimSize) -> str:
        """`vcuda-1x20c8b`: one part of 20 cores and 8 blocks. A filter adds a digest of itself."""
        return f"vcuda-{size.gpus}x{size.cores}c{size.blocks}b{self._digest}"

    def size(self, name: str) -> ClaimSize:
        """ParseError for a name that `name` does not give."""
        found = _NAME.fullmatch(name)
        if found is None:
            raise ParseError(f"{ascii(name)[:80]} is no name of a claim template of vcuda")
        size = ClaimSize(*map(int, found.groups()))
        if self.name(size) != name:
            raise ParseError(f"the claim template {name} is not for the GPUs that the pod's annotations accept")
        return size

    def spec(self, size: ClaimSize) -> dict[str, object]:
        """spec.spec of the template; RequestError for one that nothing can be allocated for."""
        if size.gpus > MOST_DEVICES:
            raise RequestError(
                f"{size.gpus} GPUs were requested and a claim has at most {MOST_DEVICES} devices; request at most "
                f"{MOST_DEVICES} for each container"
            )
        memory = f"{size.blocks * BLOCK_MIB}Mi"
        exactly: dict[str, object] = {
            "deviceClassName": self._names.whole_gpus if size.is_whole else self._names.shares
        }
        selectors = list(self._selectors)
        if size.gpus > 1:
            exactly["count"] = size.gpus
        if not size.is_whole:
            exactly["capacity"] = {"requests": {"cores": str(size.cores), "memory": memory}}
        elif size.blocks:
            driver = self._names.driver
            selectors.append(f'device.capacity["{driver}"].memory.compareTo(quantity("{memory}")) >= 0')
        if selectors:
            exactly["selectors"] = [{"cel": {"expression": each}} for each in selectors]
        devices: dict[str, object] = {"requests": [{"name": REQUEST, "exactly": exactly}]}
        if self._one_numa and size.gpus > 1:
            devices["constraints"] = [{"requests": [REQUEST], "matchAttribute": f"{self._names.driver}/numaNode"}]
        return {"devices": devices}


def _selectors(wanted: GpuFilter, driver: str) -> list[str]:
    """In the words of CEL; the attributes are those of `kubelet.dra.published`."""
    uuid, model = (f'device.attributes["{driver}"].{name}' for name in ("uuid", "productName"))
    contains = f"{model}.lowerAscii().contains("
    if max(len(wanted.models), len(wanted.not_models)) * len(contains) > LONGEST_SELECTOR:
        raise _too_long(f"more than {LONGEST_SELECTOR}")  # counted, because thousands of words take long to write
    named, avoided = (
        [f"{contains}{_text(each.lower())})" for each in words] for words in (wanted.models, wanted.not_models)
    )
    found = []
    if named:
        found.append(" || ".join(named))
    if avoided:
        found.append(f"!({' || '.join(avoided)})")
    if wanted.uuids:
        found.append(f"{uuid} in {_text(sorted(wanted.uuids))}")
    if wanted.not_uuids:
        found.append(f"!({uuid} in {_text(sorted(wanted.not_uuids))})")
    if (longest := max((len(each.encode()) for each in found), default=0)) > LONGEST_SELECTOR:
        raise _too_long(str(longest))
    return found


def _too_long(taken: str) -> RequestError:
    return RequestError(
        f"the GPUs that the pod's annotations name take {taken} bytes in a claim and Kubernetes takes "
        f"{LONGEST_SELECTOR}; name fewer GPUs, or models"
    )


def _text(text: str | list[GpuUuid]) -> str:
    """A string of JSON, or a list of them, is one of CEL too, but for JSON's pairs of surrogates, which CEL refuses."""
    return json.dumps(text, ensure_ascii=False)


def _digest(wanted: GpuFilter) -> str:
    said = [sorted(wanted.models), sorted(wanted.not_models), sorted(wanted.uuids), sorted(wanted.not_uuids)]
    return hashlib.sha256(json.dumps([said, wanted.one_numa]).encode()).hexdigest()[:10]
