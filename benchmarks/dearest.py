"""What the dearest objects that a tenant may have cost others, in clusters of 60 to 5,000 nodes.

A real `vcuda scheduler` on one core, in front of a stub API server; nodes of eight GPUs, empty or with two pods each.
Each object is asked about alone: pods of 1 to 1,000 GPU containers by filter, twice, as kube-scheduler tries again; and
reviews of pods of 1 to 20,000 volumes. At last an ordinary pod, while kube-scheduler makes room for 60 dear ones of
another tenant on two of the nodes (`beside_nominated`). A stranger asks /healthz meanwhile, one request after the
other: the longest answer beside an object, less that without one, is how long the object held the loop. Output (keys of
`--output json`): `calm_ms`, the longest such answer with nothing beside it; `longest_loop_ms` and `longest_answer_ms`
over all objects, and of each kind, such as `filter_64_together_loop_ms`; `peak_rss_mib`. The figures are the largest
over all clusters.

    python -m benchmarks.dearest [--output json] [--short]
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.cluster import fleet
from benchmarks.cluster.measured import Measured, measured_scheduler, pin_others
from benchmarks.cluster.stub import PODS_A_NODE, stub_server
from benchmarks.command import ends_in_one_sentence, options, scratch_folder, show
from deviceplugin.model.units import ResourceNames
from sandbox.apiserver.kubeconfig import write_kubeconfig
from sandbox.http_connection import Connection

SIZES = (60, 1_000, 5_000)
CORE = 0
_RESOURCES = ResourceNames()
_SEEN_S = 1.0
Json = dict[str, Any]
Times = dict[str, float]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--nodes", type=int, nargs="*", default=SIZES, help="sizes of clusters (default: %(default)s)")
    given = parser.parse_args()
    sizes = (20,) if given.short else tuple(given.nodes)
    with scratch_folder() as folder:
        pin_others(CORE)
        found: Times = {}
        for nodes in sizes:
            for pods in (0, nodes * PODS_A_NODE):
                for name, figure in measure(folder / f"{nodes}-{pods}", nodes, pods).items():
                    found[name] = max(found.get(name, 0.0), figure)
        show(found, given.output)


def measure(folder: Path, nodes: int, pods: int) -> Times:
    folder.mkdir()
    with stub_server(nodes, pods) as (url, _):
        kubeconfig = write_kubeconfig(folder / "kubeconfig", url)
        with measured_scheduler(folder, kubeconfig, core=CORE) as scheduler:
            found = asyncio.run(_ask_all(scheduler, nodes, url))
            return {**found, "peak_rss_mib": scheduler.rss_mib("VmHWM")}


async def _ask_all(scheduler: Measured, nodes: int, stub: str) -> Times:
    calm = await _longest(scheduler, lambda: asyncio.sleep(1.0))
    names = [fleet.node_name(number) for number in range(nodes)]
    found: Times = {"calm_ms": calm, "longest_loop_ms": 0.0, "longest_answer_ms": 0.0}
    kube, strangers = await Connection.open(scheduler.loopback_port, None), scheduler.trust()
    webhook = await Connection.open(scheduler.port, strangers)
    for what, pod in PODS.items():
        body = json.dumps({"Pod": pod, "NodeNames": names}).encode()
        for _ in range(2):
            await _one(found, scheduler, f"filter_{what}", lambda: kube.post("/filter", body))  # noqa: B023 - awaited here
    for what, pod in REVIEWED.items():
        body = json.dumps(_review(pod)).encode()
        await _one(found, scheduler, f"review_{what}", lambda: webhook.post("/webhook", body))  # noqa: B023
    async with aiohttp.ClientSession() as session, session.put(f"{stub}/bench/pods", json=_nominated(names)):
        await asyncio.sleep(_SEEN_S)
    body = json.dumps({"Pod": PODS["1"], "NodeNames": names}).encode()
    for _ in range(2):
        await _one(found, scheduler, "filter_beside_nominated", lambda: kube.post("/filter", body))
    for connection in (kube, webhook):
        await connection.close()
    return found


async def _one(found: Times, scheduler: Measured, what: str, ask: Callable[[], Awaitable[object]]) -> None:
    began = time.perf_counter()
    longest = await _longest(scheduler, ask)
    took = (time.perf_counter() - began) * 1000
    for name, figure in ((f"{what}_loop_ms", max(0.0, longest - found["calm_ms"])), (f"{what}_answer_ms", took)):
        found[name] = max(found.get(name, 0.0), figure)
        total = "longest_loop_ms" if name.endswith("_loop_ms") else "longest_answer_ms"
        found[total] = max(found[total], figure)


async def _longest(scheduler: Measured, ask: Callable[[], Awaitable[object]]) -> float:
    """The longest answer to others until the question is answered, in ms."""
    probe = await Connection.open(scheduler.port, scheduler.trust())
    asked, longest = asyncio.ensure_future(ask()), 0.0
    while not asked.done():
        began = time.perf_counter()
        await probe.get("/healthz")
        longest = max(longest, time.perf_counter() - began)
    await probe.close()
    await asked
    return longest * 1000


def _pod(
    sizes: list[tuple[int, int]], *, inits: int = 0, annotations: dict[str, str] | None = None, volumes: int = 0
) -> Json:
    """Every size a container; the first of them init containers."""
    made = []
    for at, (cores, blocks) in enumerate(sizes):
        limits = {_RESOURCES.core: str(cores), _RESOURCES.memory: str(blocks)}
        made.append({"name": f"c{at}", "image": "x", "resources": {"limits": limits}})
    metadata = {"name": "dear", "namespace": "tenant", "uid": "dear", "annotations": annotations or {}}
    on_node = [{"name": f"v{at}", "hostPath": {"path": "/x"}} for at in range(volumes)]
    return {
        "metadata": metadata,
        "spec": {"initContainers": made[:inits], "containers": made[inits:], "volumes": on_node},
    }


_MIXED = [((3, 5, 26, 34)[at % 4], (11, 14, 7, 1)[at % 4]) for at in range(64)]
_NAMES = {f"tencent.com/vcuda-avoid-{what}": ",".join(f"x{at}" for at in range(400)) for what in ("gpus", "models")}
PODS = {
    "1": _pod([(10, 4)]),
    "64": _pod([(1, 1)] * 64),
    "64_mixed": _pod(_MIXED),
    "64_inits": _pod(_MIXED, inits=60),
    "17_together": _pod([(34, 20)] * 17),
    "9_together": _pod([(51 + at, 20 + at) for at in range(9)]),
    "linked": _pod([(300, 0)] * 64, inits=63),
    "named": _pod(_MIXED, annotations=_NAMES),
    "1000": _pod([(1, 1)] * 1000),
}
REVIEWED = {
    "1": _pod([(10, 4)]),
    "1000_containers": _pod([(1, 1)] * 1000),
    **{f"{count}_volumes": _pod([(1, 1)] * 64, volumes=count) for count in (100, 5_000, 20_000)},
    "named": _pod(_MIXED, annotations=_NAMES),
}


def _nominated(names: Sequence[str]) -> list[Json]:
    """Sixty of 32 containers, on two of the nodes."""
    made = []
    for at in range(60):
        pod = _pod([(1, 1)] * 32)
        pod["metadata"] |= {"name": f"nominated-{at}", "namespace": "other", "uid": f"nominated-{at}"}
        made.append({**pod, "status": {"phase": "Pending", "nominatedNodeName": names[at % 2]}})
    return made


def _review(pod: Json) -> Json:
    request = {
        "uid": "r",
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "operation": "CREATE",
        "namespace": "tenant",
        "object": pod,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


if __name__ == "__main__":
    ends_in_one_sentence(main)
