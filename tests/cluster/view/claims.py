"""Claims, what nodes offer to them, and pods that name them, as the scheduler reads them."""

from collections.abc import Iterable, Mapping
from fractions import Fraction

from deviceplugin.model.allocation import ContainerRef, ContainerRole, PodRef, PodUid
from deviceplugin.model.claims import (
    Claim,
    ClaimedDevice,
    ClaimNames,
    ClaimRef,
    ClaimRequest,
    ClaimUid,
    ContainerClaim,
    DeviceRequest,
    NodeOffer,
    OfferedGpu,
    PodClaim,
    Taint,
)
from deviceplugin.model.gpu import Driver, Gpu, GpuUuid
from deviceplugin.model.pod import ClusterPod, Pod, PodContainer, ScheduledCondition
from deviceplugin.model.units import BLOCK_BYTES

NAMES = ClaimNames("tencent.com")
BLOCKS = 64
FIFTH = (ClaimRequest("gpu", (DeviceRequest(NAMES.shares, 1, 20, 8),)),)
WHOLE = (ClaimRequest("gpu", (DeviceRequest(NAMES.whole_gpus),)),)


def offer(
    node: str, gpus: Iterable[int] = (0, 1), *, taints: Mapping[int, Taint] | None = None, generation: int = 1
) -> NodeOffer:
    return NodeOffer(
        slice=f"{node}-vcuda-{generation}",
        uid=f"slice-{node}-{generation}",
        node=node,
        generation=generation,
        driver=Driver("550.1.0", (12, 4)),
        gpus=tuple(_offered(node, at, (taints or {}).get(at)) for at in gpus),
    )


def _offered(node: str, at: int, taint: Taint | None) -> OfferedGpu:
    gpu = Gpu(GpuUuid(f"GPU-{node}-{at}"), at, at, "Tesla T4", BLOCKS * BLOCK_BYTES, numa=at)
    return OfferedGpu(f"gpu-{at}", gpu, 100, BLOCKS, () if taint is None else (taint,))


def claim(name: str, requests: tuple[ClaimRequest, ...] = FIFTH, *, uid: str = "") -> Claim:
    return Claim(ClaimRef(ClaimUid(uid or f"claim-{name}"), "d", name), requests=requests)


def allocated(
    name: str,
    node: str,
    *devices: tuple[int, int, int],
    for_pods: Iterable[ClusterPod] = (),
    requests: tuple[ClaimRequest, ...] = FIFTH,
    driver: str = NAMES.driver,
) -> Claim:
    """`devices`: minor, cores, blocks; all of the first request."""
    found = tuple(
        ClaimedDevice(
            *(requests[0].name, driver, node, f"gpu-{minor}", f"share-{at}"),
            consumed={"cores": Fraction(cores), "memory": Fraction(blocks * BLOCK_BYTES)},
        )
        for at, (minor, cores, blocks) in enumerate(devices)
    )
    ref = ClaimRef(ClaimUid(f"claim-{name}"), "d", name)
    return Claim(ref, found, frozenset(each.uid for each in for_pods), requests=requests)


def claiming(
    name: str,
    *claims: str,
    on: str = "",
    containers: Mapping[str, Iterable[str]] | None = None,
    refused: str = "",
    templates: Iterable[str] = (),
    whole_gpus: int = 0,
    created: float = 0.0,
    uid: str = "",
) -> ClusterPod:
    """`containers`: which claims each names (`claim` or `claim/request`); the one `main` names all."""
    ref = PodRef(PodUid(uid or f"pod-{name}"), "d", name)
    using = containers if containers is not None else {"main": claims}
    made = tuple(
        PodContainer(
            ContainerRef(ref, each),
            ContainerRole.APP,
            at,
            claims=tuple(ContainerClaim(*one.split("/")) for one in used),
        )
        for at, (each, used) in enumerate(using.items())
    )
    pod = Pod(ref, made, node=on, api_uid=ref.uid, resource_version="1", created=created)
    named = [PodClaim(f"c{at}", each) for at, each in enumerate(claims)]
    named += [PodClaim(f"t{at}", template=each) for at, each in enumerate(templates)]
    condition = ScheduledCondition(False, "Unschedulable", 1, refused) if refused else None
    return ClusterPod(
        pod, condition=condition, claims=tuple(named), whole_gpus=(("main", whole_gpus),) if whole_gpus else ()
    )
