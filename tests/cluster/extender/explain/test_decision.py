"""Why a bound pod is where it is: written with its Binding, said by every replica, and by nobody else's words."""

import asyncio

import pytest

from deviceplugin.cluster.extender.extender import Extender
from deviceplugin.config.scheduler import PlacementSettings
from deviceplugin.errors import ParseError
from deviceplugin.model.allocation import ContainerRole
from deviceplugin.model.annotations import LONGEST, ContainerRecord, DecisionRecord, format_decision, parse_decision
from deviceplugin.model.pod import ClusterPod
from deviceplugin.model.preferences import NodePolicy
from deviceplugin.structs import replace
from tests.cluster.extender.api import Fate, MemoryApi
from tests.cluster.extender.makers import NAMES, allocated, ask, bound, node, on_gpu, order, pod, running


async def placed(extender: Extender, api: MemoryApi, one: ClusterPod, *names: str) -> ClusterPod:
    """The pod as the watch shows it after its Binding."""
    kept = api.put(one)
    extender.put_pod(kept)
    (name,) = extender.filter(ask(kept, *names)).names
    assert await extender.bind(order(kept, name)) == ""
    extender.put_pod(api.pods[one.uid])
    return api.pods[one.uid]


async def why(extender: Extender, one: ClusterPod) -> tuple[str, ...]:
    found = await extender.explain("d", one.pod.ref.name)
    assert found is not None
    assert found == await extender.explain("d", one.pod.ref.name, leads=False)
    return found.why


async def test_node_and_gpus_have_their_reason_and_what_was_passed_over(extender: Extender, api: MemoryApi) -> None:
    for name in ("a", "b", "c", "d", "e", "f"):
        extender.put_node(node(name, 2))
    extender.put_node(node("small", 1, blocks=4))
    extender.put_pod(running("b", 0, 30, 8))
    extender.put_pod(running("c", 0, 20, 8))
    one = await placed(extender, api, pod(cores=40, blocks=8), "a", "b", "c", "d", "e", "f", "small", "gone")
    assert await why(extender, one) == (
        "node b is the one that leaves the fewest useless cores of 6 nodes that fit (policy fragmentation)",
        "  next in that order: c, a, d and 2 more",
        "  1 node: node is not in the GPU scheduler's cache yet",
        "  1 node: memory request larger than any GPU",
        "container main: GPU 0 is the fullest of 2 GPUs that fit, with 70 cores and 14 GiB free",
        "  GPU 1: fits, but GPU 0 is fuller: 70 cores free against 100",
    )


async def test_after_a_restart_and_on_every_replica_it_says_the_same(extender: Extender, api: MemoryApi) -> None:
    extender.put_node(node("a", 2))
    one = await placed(extender, api, pod(more=[("setup", ContainerRole.INIT, 100, 0)]), "a")
    another = Extender(api)
    another.put_node(node("a", 2))
    another.put_pod(one)
    said = await why(another, one)
    assert said == await why(extender, one)
    assert said[0] == "node a is the only one that fits"
    containers = {line.split(":")[0] for line in said if line.startswith("container")}
    assert containers == {"container setup", "container main"}


async def test_the_pods_own_policy_is_named() -> None:
    said = {
        NodePolicy.SPREAD: "node a is the emptiest of 2 nodes that fit (policy spread)",
        NodePolicy.BINPACK: "node b is the fullest of 2 nodes that fit (policy binpack)",
    }
    for policy, sentence in said.items():
        extender = Extender(api := MemoryApi(), PlacementSettings(node_policy=policy))
        extender.put_node(node("a", 2))
        extender.put_node(node("b", 2))
        extender.put_pod(running("b", 0, 30, 8))
        assert (await why(extender, await placed(extender, api, pod(), "a", "b")))[0] == sentence


async def test_equal_nodes_are_said_to_be_equal(extender: Extender, api: MemoryApi) -> None:
    extender.put_node(node("a"))
    extender.put_node(node("b"))
    said = await why(extender, await placed(extender, api, pod(), "b", "a"))
    assert said[:2] == (
        "node a is the first by name of those that are best by policy fragmentation; 2 nodes fit",
        "  next: b",
    )
    assert said[2].startswith("container main: GPU 0 is the first of 2 GPUs that fit and are alike, with 100 cores")


async def test_a_pod_that_is_filtered_and_bound_again_keeps_its_reason(extender: Extender, api: MemoryApi) -> None:
    extender.put_node(node("a", 1))
    extender.put_node(node("b", 2))
    kept = api.put(pod())
    extender.put_pod(kept)
    assert extender.filter(ask(kept, "a", "b")).names == ("a",)
    assert extender.filter(ask(kept, "a")).names == ("a",), "kube-scheduler asks again about fewer nodes"
    api.fates.append(Fate.BROKEN_BEFORE)
    assert await extender.bind(order(kept, "a")) != ""
    assert await extender.bind(order(kept, "a")) == ""
    extender.put_pod(api.pods[kept.uid])
    assert (await why(extender, kept))[1] == "  next: b"


async def test_another_choice_than_filters_has_no_reason_of_filters(extender: Extender, api: MemoryApi) -> None:
    extender.put_node(node("a", 1))
    extender.put_node(node("b", 1))
    kept = api.put(pod())
    extender.put_pod(kept)
    assert extender.filter(ask(kept, "a", "b")).names == ("a",)
    assert await extender.bind(order(kept, "b")) == ""
    assert NAMES.decision not in api.pods[kept.uid].pod.annotations


async def test_where_the_agent_chose_other_gpus_it_is_said(extender: Extender, api: MemoryApi) -> None:
    extender.put_node(node("a", 2))
    one = await placed(extender, api, pod(cores=50, blocks=8), "a")
    moved = bound(one, "a", allocated(one, {"main": on_gpu("a", 1, 50, 8)}))
    extender.put_pod(replace(moved, pod=replace(moved.pod, resource_version="999")))
    assert (await why(extender, one))[-1] == "container main: the node's agent has placed it again since"


async def test_what_was_written_for_another_pod_or_is_wrong_says_nothing(extender: Extender, api: MemoryApi) -> None:
    extender.put_node(node("a"))
    one = await placed(extender, api, pod(), "a")
    found = parse_decision(one.pod.annotations[NAMES.decision])
    forged = {
        "pod": format_decision(_with(found, pod="another")),
        "node": format_decision(_with(found, node="b")),
        "version": format_decision(_with(found, version=2)),
        "not JSON": "{",
        "long": "x" * (LONGEST + 1),
        "empty": '{"version":1}',
        "deep": "[" * 2000,
        "surrogate": '"\ud800"',
    }
    for at, (how, text) in enumerate(forged.items()):
        written = replace(one.pod, annotations={**one.pod.annotations, NAMES.decision: text})
        extender.put_pod(replace(one, pod=replace(written, resource_version=f"{900 + at}")))
        assert await why(extender, one) == (), how


def _with(found: DecisionRecord, *, pod: str = "", node: str = "", version: int = 1) -> DecisionRecord:
    return DecisionRecord(version, pod or found.pod, node or found.node, found.at, found.reason)


def test_the_annotation_is_never_long() -> None:
    others = tuple(f"GPU {at}: {'x' * 100}" for at in range(40))
    big = DecisionRecord(1, "u", "n", 7, "why", ("next: b",), {"main": ContainerRecord((0,), "because", others)})
    assert parse_decision(format_decision(big)).containers["main"] == ContainerRecord((0,), "because")
    many = {f"c-{at}": ContainerRecord((0,), "because" * 10) for at in range(100)}
    huge = DecisionRecord(1, "u", "n", 7, "why", ("next: b",), many)
    assert parse_decision(format_decision(huge)) == DecisionRecord(1, "u", "n", 7, "why")
    with pytest.raises(ParseError, match="has 5000 characters"):
        parse_decision("x" * 5000)


async def test_decisions_of_many_pods_at_once_do_not_mix(extender: Extender, api: MemoryApi) -> None:
    for name in ("a", "b"):
        extender.put_node(node(name, 2))
    pods = [api.put(pod(f"p-{at}", cores=50)) for at in range(8)]
    names: list[str] = []
    for one in pods:
        extender.put_pod(one)
        names += extender.filter(ask(one, "a", "b")).names
    api.turns = 3
    assert await asyncio.gather(*(extender.bind(order(one, name)) for one, name in zip(pods, names, strict=True))) == [
        ""
    ] * len(pods)
    for one, name in zip(pods, names, strict=True):
        record = parse_decision(api.pods[one.uid].pod.annotations[NAMES.decision])
        assert (record.pod, record.node) == (one.uid, name)
        assert f"GPU {record.containers['main'].gpus[0]} is" in record.containers["main"].reason


async def test_it_is_said_once_in_one_sentence_when_the_pod_is_bound(api: MemoryApi) -> None:
    said: list[tuple[str, str]] = []
    extender = Extender(api, placed=lambda ref, why: said.append((ref.name, why)))
    for name in ("a", "b"):
        extender.put_node(node(name, 1))
    one = await placed(extender, api, pod("p", cores=40, blocks=8), "a", "b")
    assert await extender.bind(order(one, one.pod.node)) == ""
    first = "node a is the first by name of those that are best by policy fragmentation; 2 nodes fit"
    assert said == [("p", f"{first}; container main: GPU 0 is the only one that fits, with 100 cores and 16 GiB free")]


async def test_a_pod_that_is_not_bound_or_was_not_chosen_for_is_said_nothing_of(api: MemoryApi) -> None:
    said: list[str] = []
    extender = Extender(api, placed=lambda _, why: said.append(why))
    extender.put_node(node("a", 1))
    failed, unasked = api.put(pod("failed")), api.put(pod("unasked"))
    api.fates.append(Fate.REFUSED)
    for one in (failed, unasked):
        extender.put_pod(one)
    extender.filter(ask(failed, "a"))
    assert await extender.bind(order(failed, "a")) != ""
    assert await extender.bind(order(unasked, "a")) == ""
    assert said == []
