"""The pages, asked over real sockets."""

import json
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import grpc
import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from deviceplugin.errors import ConfigError
from deviceplugin.gpu_manager import views
from deviceplugin.ledger.grant import GrantId
from deviceplugin.model.gpu import Breach, ContainerUse, GpuSample, GpuUse, Health, Overrun
from deviceplugin.model.topology import Level
from deviceplugin.observe.graph import draw
from deviceplugin.observe.http import QueryServer
from deviceplugin.observe.metrics import REGISTRATIONS, AgentMetrics
from deviceplugin.observe.node_view import AgentState, NodePicture, Rendering
from deviceplugin.serve.messages import HttpRequest
from deviceplugin.serve.token_file import TokenFile
from deviceplugin.structs import replace
from deviceplugin.wire import deviceplugin_pb2 as pb
from deviceplugin.wire import deviceplugin_pb2_grpc as rpc
from tests.observe.pictures import by_groups, gpu, grant, node, uuid
from tests.observe.views import Clock, StillView

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
PICTURE = node(
    [gpu(1, index=0), gpu(0, index=1)],
    by_groups(2, (Level.PIX, 2)),
    grant("ml/train/main", 0, cores=50, blocks=64),
    grant("ml/lost/c", 9),
    health={uuid(1): Health(healthy=False, reason="XID 79")},
    samples={uuid(0): GpuSample(75, 10)},
    uses={
        "ml/train/main": ContainerUse(
            (GpuUse(uuid(0), 1 << 30, 1 << 29, 2 << 30, 3, 100 / 3, None, 12.5, 0.25, 4),),
            processes=1,
            overruns=(Overrun(Breach.MEMORY, uuid(0), "container c does too much"),),
        )
    },
)


@dataclass
class Agent:
    """A running server, the view behind it, and a client."""

    view: StillView
    client: aiohttp.ClientSession
    url: str
    clock: Clock
    metrics: AgentMetrics

    async def get(self, path: str, **headers: str) -> tuple[int, str, str]:
        async with self.client.get(self.url + path, headers=headers) as answer:
            return answer.status, answer.content_type, await answer.text()


@pytest.fixture
async def agent() -> AsyncIterator[Agent]:
    view = StillView(PICTURE)
    clock, metrics = Clock(), AgentMetrics(version="1.2.3")
    server = QueryServer(Rendering(view, period_s=10.0, clock=clock), metrics, views, version="1.2.3", clock=clock)
    await server.start("127.0.0.1", 0)
    async with aiohttp.ClientSession() as client:
        yield Agent(view, client, f"http://127.0.0.1:{server.port}", clock, metrics)
    await server.stop()


@pytest.mark.parametrize(
    ("path", "held"),
    [
        ("/usage", r'"cores_allocated":\d+'),
        ("/graph", r"\d+/200"),
        ("/metrics", r"vcuda_gpu_\w*allocated\w*\{.+"),
        ("/metric", r'container_gpu_memory_total\{.*gpu_memory="gpu1".*\} (.+)'),
    ],
)
async def test_strangers_see_no_names_where_the_flag_says_so(path: str, held: str) -> None:
    """Who asks from loopback has a right that the API server has checked; what is held of each GPU is the same."""
    ids = {grant.id: GrantId(f"g-{number}") for number, grant in enumerate(PICTURE.grants)}
    picture = replace(
        PICTURE,
        grants=tuple(replace(grant, id=ids[grant.id]) for grant in PICTURE.grants),
        uses={ids[grant_id]: use for grant_id, use in PICTURE.uses.items()},
    )
    rendering = Rendering(StillView(picture), period_s=10.0)
    server = QueryServer(rendering, AgentMetrics(version="1"), views, version="1", names_for_all=False)._server
    texts = []
    for peer in ("10.1.2.3", "127.0.0.1"):
        asked = HttpRequest("GET", path.encode(), {}, peer, frozenset(), lambda: False)
        texts.append((await server.answer(asked, server.route(asked))).body.decode())
    hidden, shown = texts
    uid = PICTURE.grants[0].allocation.owner.pod.uid
    assert "train" in shown
    assert [name for name in ("train", "ml/", '"ml"', uid, "container c does too much") if name in hidden] == []
    assert "hidden" in hidden
    assert re.findall(held, hidden)
    assert re.findall(held, hidden) == re.findall(held, shown)


async def test_who_shows_the_token_of_the_file_sees_names(tmp_path: Path) -> None:
    """Directly, or through the API server's proxy; without the file nobody does."""
    file, rendering, clock = tmp_path / "token", Rendering(StillView(PICTURE), period_s=10.0), Clock()
    names = TokenFile(file, clock=clock)
    made = QueryServer(rendering, AgentMetrics(version="1"), views, version="1", names_for_all=False, names=names)

    async def sees(**headers: str) -> bool:
        shown = {name.replace("_", "-").lower().encode(): value.encode() for name, value in headers.items()}
        asked = HttpRequest("GET", b"/usage", shown, "10.1.2.3", frozenset(), lambda: False)
        return "hidden" not in (await made._server.answer(asked, made._server.route(asked))).body.decode()

    right: dict[str, str] = {"Authorization": "Bearer secret"}
    assert not await sees(**right)
    file.write_text("secret\n")
    assert not await sees(**right), "read a moment ago"
    clock.now += 11.0
    assert await sees(**right)
    assert await sees(X_Vcuda_Token="secret")
    for wrong in ({}, {"Authorization": "Bearer other"}, {"Authorization": "secret"}, {"X_Vcuda_Token": ""}):
        assert not await sees(**wrong), wrong
    assert not await sees(X_Vcuda_Token="other", **right)
    file.unlink()
    clock.now += 11.0
    assert not await sees(**right)
    assert not await sees(Authorization="Bearer ")


@pytest.mark.parametrize("path", ["/metrics", "/metric"])
async def test_metrics_are_where_prometheus_and_gpu_manager_look(agent: Agent, path: str) -> None:
    status, content_type, text = await agent.get(path)
    assert (status, content_type) == (200, "text/plain")
    assert 'vcuda_build_info{version="1.2.3"} 1.0' in text


async def test_gpu_managers_path_has_its_four_metrics_beside_ours(agent: Agent) -> None:
    text = (await agent.get("/metric", Accept="application/openmetrics-text"))[2]
    families = {family.name: family for family in text_string_to_metric_families(text)}
    names = {"pod_name": "train", "namespace": "ml", "node": "gpu-7", "container_name": "main"}
    shown: dict[str, list[tuple[str, str, float]]] = {
        "container_gpu_utilization": [("gpu", "gpu1", 100 / 3), ("gpu", "total", 100 / 3)],
        "container_gpu_memory_total": [("gpu_memory", "gpu1", 1024), ("gpu_memory", "total", 1024)],
        "container_request_gpu_utilization": [("req_of_gpu", "total", 0.5)],
        "container_request_gpu_memory": [("req_of_gpu_memory", "total", 64 * 256)],
    }
    for name, rows in shown.items():
        found = [each for each in families[name].samples if each.labels["pod_name"] == "train"]
        assert [(each.labels, each.value) for each in found] == [({**names, key: of}, value) for key, of, value in rows]
    assert "container_gpu_utilization" not in (await agent.get("/metrics"))[2]


async def test_graph_and_usage_have_what_gpu_managers_gateway_answered(agent: Agent) -> None:
    assert json.loads((await agent.get("/graph", Accept="application/json"))[2])["graph"] == draw(PICTURE)
    usage = json.loads((await agent.get("/usage"))[2])["usage"]
    assert usage["uid-ml-train"] == {
        "stat": {
            "main": {"dev": [{"id": uuid(0), "card_idx": "1", "gpu": 33.333332, "mem": 1024.0, "device_mem": 81920.0}]}
        },
        "project": "ml",
        "spec": {"main": {"gpu": 0.5, "mem": 16384.0}},
    }


async def test_metrics_show_the_last_event(agent: Agent) -> None:
    for count in ("1.0", "2.0"):
        agent.metrics.count(REGISTRATIONS)
        assert f"vcuda_kubelet_registrations_total {count}" in (await agent.get("/metrics"))[2]


async def test_the_graph_is_text_by_default_and_json_by_accept(agent: Agent) -> None:
    assert await agent.get("/graph") == (200, "text/plain", draw(PICTURE))
    assert (await agent.get("/graph", Accept="text/html, */*;q=0.8"))[1] == "text/plain"
    status, content_type, text = await agent.get("/graph", Accept="application/json")
    assert (status, content_type) == (200, "application/json")
    found = json.loads(text)
    assert (found["version"], found["node"], found["driver"], found["cuda"]) == (1, "gpu-7", "550.54.15", "12.4")
    tree = found["tree"]
    assert (tree["level"], tree["distance"], tree["minors"]) == ("PIX", 10, [0, 1])
    first, second = tree["children"]
    assert first["owners"] == [{"namespace": "ml", "pod": "train", "container": "main", "cores": 50, "blocks": 64}]
    assert (first["gpu"]["index"], first["gpu"]["minor"], first["gpu"]["cores_allocated"]) == (1, 0, 50)
    assert (second["gpu"]["healthy"], second["gpu"]["reason"], "owners" in second) == (False, "XID 79", False)


async def test_the_graph_can_be_had_in_ascii(agent: Agent) -> None:
    assert (await agent.get("/graph?ascii"))[2].isascii()


async def test_usage_names_every_gpu(agent: Agent) -> None:
    status, content_type, text = await agent.get("/usage")
    assert (status, content_type) == (200, "application/json")
    found = json.loads(text)
    assert found["gpus"][1] == {
        "uuid": "GPU-00000000",
        "index": 1,
        "minor": 0,
        "model": "NVIDIA A100-SXM4-80GB",
        "healthy": True,
        "reason": "",
        "cores_allocated": 50,
        "blocks_allocated": 64,
        "blocks": 320,
        "memory_bytes": 80 << 30,
        "memory_allocated_bytes": 16 << 30,
        "memory_used_bytes": 10,
        "utilization_percent": 75,
        "processes": 0,
        "cordoned": False,
        "available": True,
    }
    assert (found["gpus"][0]["utilization_percent"], found["gpus"][0]["reason"]) == (None, "XID 79")


async def test_usage_names_every_container(agent: Agent) -> None:
    found = json.loads((await agent.get("/usage"))[2])
    assert found["containers"][0] == {
        "namespace": "ml",
        "pod": "train",
        "uid": "uid-ml-train",
        "container": "main",
        "role": "app",
        "grant": "g-ml-train-main",
        "cores": 50,
        "blocks": 64,
        "evaluator": "share",
        "gpus": [
            {
                "uuid": "GPU-00000000",
                "minor": 0,
                "cores": 50,
                "blocks": 64,
                "memory_used_bytes": 1 << 30,
                "memory_overhead_bytes": 1 << 29,
                "memory_peak_bytes": 2 << 30,
                "memory_refusals": 3,
                "cores_used": 33.333,
                "cores_in_force": None,
                "gpu_seconds": 12.5,
                "throttled_seconds": 0.25,
                "throttled_launches": 4,
            }
        ],
        "proved": True,
        "source": "pods",
        "created": "2025-10-09T08:53:20.500Z",
        "processes": 1,
        "over_limit": ["container c does too much"],
    }
    assert found["containers"][1]["gpus"][0]["memory_used_bytes"] is None
    assert found["containers"][1]["gpus"][0]["minor"] is None


async def test_before_the_driver_has_answered_every_page_answers(agent: Agent) -> None:
    agent.view.shown = NodePicture("n", None)
    assert json.loads((await agent.get("/usage"))[2]) == json.loads(
        '{"version": 1, "node": "n", "gpus": [], "containers": [], "usage": {}}'
    )
    assert json.loads((await agent.get("/graph", Accept="application/json"))[2])["tree"] is None
    assert (await agent.get("/graph"))[2] == "n: the driver has not answered yet\n"
    assert (await agent.get("/metrics"))[0] == 200


async def test_the_version_is_served(agent: Agent) -> None:
    assert json.loads((await agent.get("/version"))[2]) == {"version": "1.2.3"}


async def test_ready_means_registered_and_synced(agent: Agent) -> None:
    assert await agent.get("/readyz") == (200, "text/plain", "ok\n")
    agent.view.is_ = AgentState(registered=False, synced=False, waiting="waiting for the driver")
    why = "waiting for the driver; not registered with kubelet; the pods of this node were not listed yet\n"
    assert await agent.get("/readyz") == (503, "text/plain", why)


class Plugin(rpc.DevicePluginServicer):
    """Answers the one call that the probe makes."""

    async def GetDevicePluginOptions(self, request: pb.Empty, context: object) -> pb.DevicePluginOptions:  # noqa: N802
        return pb.DevicePluginOptions(pre_start_required=True)


async def test_healthy_means_that_our_sockets_answer_whatever_the_gpus_and_kubelet_do(
    agent: Agent, short_tmp: Path
) -> None:
    vcore = short_tmp / "vcore.sock"
    server = grpc.aio.server()
    rpc.add_DevicePluginServicer_to_server(Plugin(), server)
    server.add_insecure_port(f"unix:{vcore}")
    await server.start()
    agent.view.is_ = AgentState(registered=False, synced=False, sockets=(vcore,))
    assert await agent.get("/healthz") == (200, "text/plain", "ok\n")
    await server.stop(None)
    assert (await agent.get("/healthz"))[0] == 200  # asked once a second at most
    agent.clock.now += 1
    why = f"the server on {vcore} does not answer (unavailable)\n"
    assert await agent.get("/healthz") == (503, "text/plain", why)


async def test_other_paths_and_methods_are_refused_plainly(agent: Agent) -> None:
    status, kind, said = await agent.get("/nothing")
    assert (status, kind, said.partition(";")[0]) == (404, "text/plain", "no such path")
    async with agent.client.post(agent.url + "/graph") as answer:
        assert (answer.status, answer.content_type, answer.headers["Allow"]) == (405, "text/plain", "GET,HEAD")


async def test_a_bug_in_a_view_is_a_plain_500_without_its_text(agent: Agent) -> None:
    agent.view.fails = True
    for path in ("/usage", "/graph", "/metrics"):
        assert await agent.get(path) == (500, "text/plain", "vcuda internal error; see the agent log on this node\n")
    assert (await agent.get("/version"))[0] == 200


async def test_a_port_that_is_taken_is_a_sentence() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        server = QueryServer(Rendering(StillView(), period_s=1.0), AgentMetrics(version="1"), views, version="1")
        with pytest.raises(ConfigError) as caught:
            await server.start("127.0.0.1", port)
    assert caught.value.message == (
        f"--query-port: port {port} on 127.0.0.1 is in use; stop what listens there or give another port"
    )


async def test_an_address_of_another_machine_is_a_sentence() -> None:
    server = QueryServer(Rendering(StillView(), period_s=1.0), AgentMetrics(version="1"), views, version="1")
    with pytest.raises(ConfigError, match=r"--query-addr: 192.0.2.1 is not an address of this machine"):
        await server.start("192.0.2.1", 0)
    with pytest.raises(ConfigError, match=r"--query-addr: no.such.host.invalid cannot be resolved"):
        await server.start("no.such.host.invalid", 0)


async def test_localhost_is_served_on_every_family_that_is_on() -> None:
    server = QueryServer(Rendering(StillView(), period_s=1.0), AgentMetrics(version="1"), views, version="1")
    await server.start("localhost", 0)
    async with aiohttp.ClientSession() as client, client.get(f"http://127.0.0.1:{server.port}/readyz") as answer:
        assert answer.status == 200
    await server.stop()
