"""Live use, from real servers that answer as agents, and from those that do not."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from deviceplugin.cluster.view.live import LiveUse, NodeUse, node_with_use, pod_with_use
from deviceplugin.cluster.view.query import PodsQuery
from deviceplugin.errors import KubeError
from deviceplugin.kube.cluster_client import Address
from deviceplugin.model.cluster_view import GpuLive, ShareLive
from deviceplugin.observe.usage import usage_of
from deviceplugin.serve.token_file import TokenFile
from deviceplugin.structs import replace
from tests.cluster.extender.conftest import Clock
from tests.cluster.extender.makers import node
from tests.cluster.view.scene import scene
from tests.observe.pictures import grant, pcie

PICTURE = pcie(4, grant("ml/train/main", 0, 1), grant("ml/nb/c", 2, cores=30, blocks=10))


@dataclass
class Agent:
    """Answers `/usage` with a body, or what `answer` does; where there is a gate, when that is open."""

    body: bytes = b"{}"
    answer: Callable[[web.BaseRequest], Any] | None = None
    asked: int = 0
    most: int = 0
    now: int = 0
    port: int = 0
    gate: asyncio.Event | None = None

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.asked += 1
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            if self.gate is not None:
                await self.gate.wait()
            if self.answer is not None:
                found: web.StreamResponse = await self.answer(request)
                return found
            return web.Response(body=self.body)
        finally:
            self.now -= 1


@asynccontextmanager
async def agent(**more: Any) -> AsyncIterator[Agent]:
    made = Agent(**more)
    runner = web.ServerRunner(web.Server(made.handle), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.port = runner.addresses[0][1]
    try:
        yield made
    finally:
        await runner.cleanup()


@asynccontextmanager
async def asking(agents: dict[str, Agent], clock: Clock | None = None, **more: Any) -> AsyncIterator[LiveUse]:
    async def addresses() -> dict[str, Address]:
        return {name: Address("127.0.0.1", each.port) for name, each in agents.items()}

    made = LiveUse(addresses, clock=clock or Clock(), **more)
    yield made
    await made.close()


def usage(node: str, **more: object) -> bytes:
    share = {"uuid": "GPU-a-0", "minor": 0, "cores": 30, "blocks": 8, "cores_used": 12.5, "memory_used_bytes": 1 << 30}
    container = {
        "namespace": "d",
        "uid": "u1",
        "container": "main",
        "gpus": [share],
        "over_limit": ["too much"],
        **more,
    }
    gpu = {"uuid": "GPU-a-0", "utilization_percent": 37, "memory_used_bytes": 2 << 30, "processes": 2, "new": "field"}
    return msgspec.json.encode({"version": 1, "node": node, "gpus": [gpu], "containers": [container]})


async def test_what_an_agent_says_is_found_by_gpu_and_container() -> None:
    async with agent(body=usage("a")) as one, asking({"a": one}) as live:
        use = (await live.of(["a"]))["a"]
    assert use.error == ""
    assert use.gpus == {"GPU-a-0": GpuLive(37, 2 << 30, 2)}
    assert use.shares == {("u1", "main", "GPU-a-0"): ShareLive(cores_used=12.5, memory_used_bytes=1 << 30)}
    assert use.over_limit == {("u1", "main"): ("too much",)}


async def test_the_agents_own_document_is_read_whole() -> None:
    body = msgspec.json.encode(usage_of(PICTURE))
    async with agent(body=body) as one, asking({PICTURE.node: one}) as live:
        use = (await live.of([PICTURE.node]))[PICTURE.node]
    assert use.error == ""
    assert set(use.gpus) == {gpu.uuid for gpu in PICTURE.gpus}
    assert len(use.shares) == sum(len(grant.allocation.shares) for grant in PICTURE.grants)


async def test_an_agent_is_asked_once_in_some_seconds_or_as_seldom_as_the_caller_allows() -> None:
    clock = Clock()
    async with agent(body=usage("a")) as one, asking({"a": one}, clock) as live:
        for later, count in ((0, 1), (0, 1), (6, 2)):
            clock.now += later
            await live.of(["a"])
            assert one.asked == count
        for count in (2, 3):
            clock.now += 20
            await live.of(["a"], oldest_s=30)
            assert one.asked == count


async def test_those_who_ask_at_once_wait_for_one_question() -> None:
    gate = asyncio.Event()
    async with agent(body=usage("a"), gate=gate) as one, asking({"a": one}) as live, asyncio.timeout(60):
        left, *others = [asyncio.create_task(live.of(["a"])) for _ in range(4)]
        while not one.asked:
            await asyncio.sleep(0.01)
        left.cancel()
        gate.set()
        assert {(await each)["a"].error for each in others} == {""}
        assert one.asked == 1


async def test_an_answer_that_gets_old_while_others_are_asked_is_still_given() -> None:
    """Another caller forgets it meanwhile."""
    clock, gate = Clock(), asyncio.Event()
    async with (
        agent(body=usage("a")) as quick,
        agent(body=usage("b"), gate=gate) as slow,
        asking({"a": quick, "b": slow}, clock) as live,
        asyncio.timeout(60),
    ):
        await live.of(["a"])
        both = asyncio.create_task(live.of(["a", "b"]))
        while not slow.asked:
            await asyncio.sleep(0.01)
        clock.now += 100
        await live.of([])
        gate.set()
        assert {use.error for use in (await both).values()} == {""}


async def test_a_caller_waits_for_all_agents_together_only_so_long_and_gets_the_rest_later() -> None:
    gate = asyncio.Event()
    async with (
        agent(body=usage("slow"), gate=gate) as slow,
        agent(body=usage("a")) as quick,
        asking({"slow": slow, "a": quick}, longest_s=1.0) as live,
        asyncio.timeout(60),
    ):
        await live.of(["a"])
        found = await live.of(["slow", "a"])
        assert (found["slow"].error, found["a"].error) == ("its agent has not answered yet", "")
        gate.set()
        while (found := await live.of(["slow"]))["slow"].error:
            await asyncio.sleep(0.01)
        assert found["slow"].gpus


async def test_an_agent_that_says_something_else_costs_only_its_own_row() -> None:
    errors = {
        b"{": "its agent's answer cannot be read",
        b"[" * 5000: "its agent's answer cannot be read",
        usage("b"): "its agent speaks for another node",
        b"x" * (2 << 20): "its agent answered with status 200 and",
        usage("bad-4", namespace="hidden"): "its agent hides who uses its GPUs (--query-names=false)",
    }
    async with AsyncExitStack() as stack:
        agents = {"good": await stack.enter_async_context(agent(body=usage("good")))}
        for at, body in enumerate(errors):
            agents[f"bad-{at}"] = await stack.enter_async_context(agent(body=body))
        found = await (await stack.enter_async_context(asking(agents))).of(list(agents))
    assert found["good"].error == ""
    bad = [found[f"bad-{at}"] for at in range(len(errors))]
    assert [use.error[: len(error)] for use, error in zip(bad, errors.values(), strict=True)] == list(errors.values())
    assert [use.shares for use in bad] == [{}] * len(bad)


async def test_a_dead_agent_an_absent_one_and_one_that_sends_elsewhere_are_told() -> None:
    async def elsewhere(request: web.BaseRequest) -> web.Response:
        return web.Response(status=302, headers={"Location": "http://127.0.0.1:1/secret"})

    async with agent() as dead:
        pass
    async with agent(answer=elsewhere) as sends, asking({"dead": dead, "sends": sends}) as live:
        found = await live.of(["dead", "absent", "sends"])
    assert found["dead"].error == "its agent does not answer"
    assert found["absent"].error == "the node has no ready agent"
    assert found["sends"].error.startswith("its agent answered with status 302")


async def test_an_agent_that_hangs_costs_its_deadline_and_no_one_else_waits_in_its_row() -> None:
    async def hang(request: web.BaseRequest) -> web.Response:
        await asyncio.sleep(600)
        return web.Response()

    async with (
        agent(answer=hang) as slow,
        agent(body=usage("a")) as quick,
        asking({"slow": slow, "a": quick}) as live,
        asyncio.timeout(60),
    ):
        found = await live.of(["slow", "a"])
    assert (found["slow"].error, found["a"].error) == ("its agent does not answer", "")


async def test_a_few_agents_are_asked_at_once() -> None:
    async def briefly(request: web.BaseRequest) -> web.Response:
        await asyncio.sleep(0.01)
        return web.Response(body=b"{")

    async with agent(answer=briefly) as one:
        names = [f"n{number}" for number in range(120)]
        async with asking(dict.fromkeys(names, one)) as live:
            await live.of(names)
        assert one.asked == 120
        assert one.most <= 32


async def test_where_the_agents_cannot_be_found_every_row_says_so() -> None:
    async def away() -> dict[str, Address]:
        raise KubeError("the API server does not answer")

    live = LiveUse(away)
    assert await live.of(["a"]) == {"a": NodeUse(error="the API server does not answer")}


async def test_rows_take_the_use_of_their_own_pods() -> None:
    made = scene()
    made.extender.put_node(node("a", 2))
    mine, other = made.runs("a", 0, 30, 8), made.runs("a", 1, 20, 8)
    use = NodeUse(
        gpus={"GPU-a-0": GpuLive(40, 10, 1), "GPU-a-1": GpuLive(20, 5, 2)},
        shares={(mine.uid, "main", "GPU-a-0"): ShareLive(cores_used=29.0)},
        over_limit={(mine.uid, "main"): ("too much",)},
    )
    found = made.views.node("a")
    assert found is not None
    row = node_with_use(found.item, use, found.item.gpus)
    assert row.live == GpuLive(30, 15, 3)
    assert (row.cores_used, row.cores_idle, row.gpus_measured) == (60.0, 0.0, 2)
    bare = node_with_use(replace(found.item, gpus=()), replace(use, gpus={"GPU-a-1": GpuLive(5)}), found.item.gpus)
    assert (bare.gpus, bare.cores_used, bare.cores_idle, bare.gpus_measured) == ((), 5.0, 15.0, 1)
    silent = node_with_use(found.item, NodeUse(error="no answer"), found.item.gpus)
    assert (silent.cores_used, silent.cores_idle, silent.gpus_measured) == (None, None, 0)
    assert [holder.live for gpu in row.gpus for holder in gpu.holders] == [ShareLive(cores_used=29.0), None]
    pods = {each.uid: pod_with_use(each, use) for each in (await made.views.pods(PodsQuery())).items}
    (container,) = pods[mine.uid].containers
    assert (container.over_limit, container.shares[0].live) == (("too much",), ShareLive(cores_used=29.0))
    assert pods[other.uid].containers[0].shares[0].live is None


async def test_agents_are_shown_the_token_for_names(tmp_path: Path) -> None:
    shown: list[str] = []

    async def note(request: web.BaseRequest) -> web.StreamResponse:
        shown.append(request.headers.get("Authorization", ""))
        return web.Response(body=msgspec.json.encode({"node": "a"}))

    (tmp_path / "token").write_text("secret\n")
    for names in (None, TokenFile(tmp_path / "token")):
        async with agent(answer=note) as one, asking({"a": one}, token=names) as live:
            assert (await live.of(["a"]))["a"].error == ""
    assert shown == ["", "Bearer secret"]
