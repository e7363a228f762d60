"""Agents of the synthetic cluster that say what is used: one loopback address for each node, one port for all.

In: numbers of nodes and pods as in `fleet`. Out: a server that answers `/usage` for the node whose address is asked,
and the EndpointSlices that say where the agents are. Invariant: only the containers that `fleet` has are named.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from aiohttp import web

from benchmarks.cluster import fleet
from deviceplugin.model.units import BLOCK_MIB, CORES_PER_GPU, MIB

SLICES = "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices"
_ENDPOINTS = 1000
Json = dict[str, Any]


def address(node: int) -> str:
    return f"127.1.{node >> 8}.{node & 255}"


@asynccontextmanager
async def agents(nodes: int, pods: int) -> AsyncIterator[Json]:
    """The list of EndpointSlices, while the agents answer."""
    answers = [msgspec.json.encode(_usage(node, range(node, pods, nodes))) for node in range(nodes)]

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        assert request.transport is not None
        *_, high, low = request.transport.get_extra_info("sockname")[0].split(".")
        return web.Response(body=answers[int(high) << 8 | int(low)], content_type="application/json")

    runner = web.ServerRunner(web.Server(answer), shutdown_timeout=0.1)
    await runner.setup()
    try:
        port = 0
        for node in range(nodes):
            await web.TCPSite(runner, address(node), port).start()
            port = runner.addresses[0][1]
        yield {"items": [_slice(first, min(first + _ENDPOINTS, nodes), port) for first in range(0, nodes, _ENDPOINTS)]}
    finally:
        await runner.cleanup()


def _slice(first: int, end: int, port: int) -> Json:
    endpoints = [{"addresses": [address(node)], "nodeName": fleet.node_name(node)} for node in range(first, end)]
    return {"metadata": {"name": f"vcuda-agent-{first}"}, "endpoints": endpoints, "ports": [{"port": port}]}


def _usage(node: int, pods: range) -> Json:
    """Each pod uses three quarters of what it holds; they are on the GPUs of their node in order."""
    gpus = [
        {
            "uuid": gpu.uuid,
            "utilization_percent": 3 * CORES_PER_GPU // 4 if place < len(pods) else 0,
            "memory_used_bytes": gpu.blocks * BLOCK_MIB * MIB // 2 if place < len(pods) else 0,
            "processes": int(place < len(pods)),
        }
        for place, gpu in enumerate(fleet.inventory_of(node).gpus)
    ]
    containers = [
        {
            "namespace": fleet.NAMESPACE,
            "uid": fleet.uid_of(f"running-{pod}"),
            "container": "main",
            "gpus": [{"uuid": gpu["uuid"], "cores_used": 7.5, "cores_in_force": 10.0, "memory_used_bytes": 1 << 30}],
        }
        for pod, gpu in zip(pods, gpus, strict=False)
    ]
    return {"node": fleet.node_name(node), "gpus": gpus, "containers": containers}
