"""Events are counted together, sent slowly, and never stand in anyone's way."""

import asyncio
import datetime as dt
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
import structlog

from deviceplugin.errors import (
    CapacityError,
    ContainerError,
    HardwareError,
    IdentityError,
    OwnershipError,
    RequestError,
    VcudaError,
)
from deviceplugin.kube.client import KubeClient
from deviceplugin.kube.events import EventReason, EventRecorder, Rate
from deviceplugin.model.allocation import PodRef, PodUid
from sandbox.apiserver import ApiServer, Harm, JsonObject
from tests.waiting import in_background

POD = PodRef(PodUid("u-1"), "prod", "web-0")
FAST = Rate(burst=100, seconds=0.01)
NOON = dt.datetime(2024, 5, 6, 12, 0, 0, tzinfo=dt.UTC)


@asynccontextmanager
async def sending(recorder: EventRecorder) -> AsyncIterator[EventRecorder]:
    async with in_background(recorder.run()):
        yield recorder


def events(server: ApiServer) -> list[JsonObject]:
    return server.store.objects("events")


async def sent(recorder: EventRecorder, *, seconds: float) -> None:
    """Until nothing waits, at most so long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while recorder._filled.is_set():
                await asyncio.sleep(0.001)


async def test_an_event_on_a_pod_has_the_form_that_kubectl_shows(server: ApiServer, client: KubeClient) -> None:
    async with sending(EventRecorder(client, node="n1", rate=FAST, now=lambda: NOON)) as recorder:
        recorder.about_pod(POD, EventReason.ALLOCATED, "30 cores of GPU 0")
        await sent(recorder, seconds=5)
    [event] = events(server)
    assert event["metadata"]["namespace"] == "prod"
    assert event["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": "web-0",
        "namespace": "prod",
        "uid": "u-1",
    }
    assert (event["reason"], event["type"], event["message"]) == ("GPUAllocated", "Normal", "30 cores of GPU 0")
    assert event["source"] == {"component": "vcuda-agent", "host": "n1"}
    assert (event["firstTimestamp"], event["lastTimestamp"], event["count"]) == (
        "2024-05-06T12:00:00Z",
        "2024-05-06T12:00:00Z",
        1,
    )


async def test_an_event_on_the_node_is_found_by_kubectl_describe_node(server: ApiServer, client: KubeClient) -> None:
    async with sending(EventRecorder(client, node="n1", rate=FAST)) as recorder:
        recorder.about_node(EventReason.UNHEALTHY, "GPU 3: Xid 79")
        await sent(recorder, seconds=5)
    [event] = events(server)
    assert event["metadata"]["namespace"] == "default"
    assert event["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "n1"}
    assert (event["reason"], event["type"]) == ("GPUUnhealthy", "Warning")


async def test_the_same_event_is_counted_while_it_waits_and_after_it_was_sent(
    server: ApiServer, client: KubeClient
) -> None:
    times = iter(NOON + dt.timedelta(seconds=number) for number in range(100))
    recorder = EventRecorder(client, node="n1", rate=FAST, now=lambda: next(times))
    for _ in range(3):
        recorder.about_pod(POD, EventReason.ALLOCATION_FAILED, "no room")
    async with sending(recorder):
        await sent(recorder, seconds=5)
        recorder.about_pod(POD, EventReason.ALLOCATION_FAILED, "no room")
        recorder.about_pod(POD, EventReason.ALLOCATION_FAILED, "another message")
        await sent(recorder, seconds=5)
    assert sorted((event["message"], event["count"]) for event in events(server)) == [
        ("another message", 1),
        ("no room", 4),
    ]
    counted = next(event for event in events(server) if event["count"] == 4)
    assert (counted["firstTimestamp"], counted["lastTimestamp"]) == ("2024-05-06T12:00:00Z", "2024-05-06T12:00:03Z")


async def test_an_event_that_expired_meanwhile_is_made_again(server: ApiServer, client: KubeClient) -> None:
    async with sending(EventRecorder(client, node="n1", rate=FAST)) as recorder:
        recorder.about_node(EventReason.RECOVERED, "GPU 3")
        await sent(recorder, seconds=5)
        [event] = events(server)
        server.store.delete("events", event["metadata"]["name"], namespace="default")
        recorder.about_node(EventReason.RECOVERED, "GPU 3")
        await sent(recorder, seconds=5)
    assert [event["count"] for event in events(server)] == [1]


async def test_a_full_queue_drops_what_comes_last(server: ApiServer, client: KubeClient) -> None:
    recorder = EventRecorder(client, node="n1", rate=Rate(burst=100, queue=10))
    for number in range(25):
        recorder.about_node(EventReason.UNHEALTHY, f"GPU {number}")
    recorder.about_node(EventReason.UNHEALTHY, "GPU 0")
    async with sending(recorder):
        await sent(recorder, seconds=5)
    assert sorted(event["message"] for event in events(server)) == [f"GPU {number}" for number in range(10)]


async def test_a_burst_is_followed_by_a_steady_trickle(server: ApiServer, client: KubeClient) -> None:
    recorder = EventRecorder(client, node="n1", rate=Rate(burst=5, seconds=0.1))
    for number in range(8):
        recorder.about_node(EventReason.UNHEALTHY, f"GPU {number}")
    started = asyncio.get_running_loop().time()
    async with sending(recorder):
        await sent(recorder, seconds=10)
    assert asyncio.get_running_loop().time() - started >= 0.3
    assert len(events(server)) == 8


@pytest.mark.parametrize("code", [429, 500, 503])
async def test_a_busy_server_is_asked_again(server: ApiServer, client: KubeClient, code: int) -> None:
    server.faults.fail(code, times=2)
    async with sending(EventRecorder(client, node="n1", rate=FAST)) as recorder:
        recorder.about_pod(POD, EventReason.ALLOCATED, "x")
        await sent(recorder, seconds=5)
        assert len(events(server)) == 1


@pytest.mark.parametrize(("code", "requests"), [(403, 1), (500, 3)])
async def test_an_event_that_cannot_be_sent_is_dropped_and_the_next_one_is_not(
    server: ApiServer, client: KubeClient, code: int, requests: int
) -> None:
    server.faults.fail(code, times=requests)
    async with sending(EventRecorder(client, node="n1", rate=FAST)) as recorder:
        recorder.about_pod(POD, EventReason.ALLOCATED, "lost")
        recorder.about_pod(POD, EventReason.ALLOCATED, "kept")
        await sent(recorder, seconds=5)
    assert [event["message"] for event in events(server)] == ["kept"]


async def test_events_wait_for_a_server_that_is_away(server: ApiServer, client: KubeClient) -> None:
    recorder = EventRecorder(client, node="n1", rate=FAST)
    for message in ("first", "second"):
        recorder.about_pod(POD, EventReason.ALLOCATED, message)
    async with sending(recorder):
        async with server.refuse():
            await sent(recorder, seconds=0.3)
        await sent(recorder, seconds=20)
    assert {event["message"] for event in events(server)} == {"first", "second"}


async def test_flush_gives_up_in_time(server: ApiServer, client: KubeClient) -> None:
    server.faults.add(Harm.HANG, times=10)
    async with sending(EventRecorder(client, node="n1", rate=FAST)) as recorder:
        recorder.about_pod(POD, EventReason.ALLOCATED, "x")
        async with asyncio.timeout(3):
            await sent(recorder, seconds=0.05)
    assert events(server) == []


async def test_the_name_of_an_event_is_a_dns_subdomain_wherever_the_pods_name_is_cut(
    server: ApiServer, client: KubeClient
) -> None:
    async with sending(EventRecorder(client, node="n1", rate=FAST)) as recorder:
        for end in ("-", ".", "--"):
            name = "a" * (230 - len(end)) + end + "b" * 20
            recorder.about_pod(PodRef(PodUid(name), "prod", name), EventReason.ALLOCATED, "ok")
        await server.until(lambda: len(events(server)) == 3)
    names = [each["metadata"]["name"] for each in events(server)]
    part = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
    assert [each for each in names if not re.fullmatch(rf"{part}(\.{part})*", each) or len(each) > 253] == []


async def test_a_long_message_is_cut_and_kept_on_one_line(server: ApiServer, client: KubeClient) -> None:
    async with sending(EventRecorder(client, node="n1", rate=FAST)) as recorder:
        recorder.about_pod(POD, EventReason.START_FAILED, "line\n" * 5000)
        await sent(recorder, seconds=5)
    [event] = events(server)
    assert len(event["message"]) == 1000
    assert "\n" not in event["message"]


def test_each_error_has_its_reason(subtests: pytest.Subtests) -> None:
    cases: list[tuple[VcudaError, EventReason]] = [
        (RequestError("x"), EventReason.ALLOCATION_FAILED),
        (CapacityError("x"), EventReason.ALLOCATION_FAILED),
        (IdentityError("x"), EventReason.ALLOCATION_FAILED),
        (OwnershipError("x"), EventReason.START_FAILED),
        (ContainerError("x"), EventReason.START_FAILED),
        (HardwareError("x"), EventReason.UNHEALTHY),
    ]
    for error, reason in cases:
        with subtests.test(error=error):
            assert EventReason.of(error) is reason


async def test_a_namespace_with_many_events_takes_the_place_of_no_other_one(
    server: ApiServer, client: KubeClient
) -> None:
    """Neither in the queue nor in the order: a tenant may have as many pods as he likes."""
    recorder = EventRecorder(client, node="n1", rate=Rate(burst=100, seconds=0.001, queue=8))
    with structlog.testing.capture_logs() as logs:
        for number in range(40):
            recorder.about_pod(PodRef(PodUid(f"g{number}"), "greedy", f"g{number}"), EventReason.NOT_BOUND, "refused")
        for number in range(2):
            recorder.about_pod(PodRef(PodUid(f"o{number}"), "other", f"o{number}"), EventReason.PLACED, "placed")
        recorder.about_node(EventReason.RECOVERED, "GPU 3")
    async with sending(recorder):
        await sent(recorder, seconds=5)
    in_order = sorted(events(server), key=lambda each: int(each["metadata"]["resourceVersion"]))
    assert [each["involvedObject"]["name"] for each in in_order] == ["g0", "o0", "n1", "g1", "o1", "g2", "g3", "g4"]
    said = [(each["namespace"], each["waiting"]) for each in logs if each["event"] == "events_crowded_out"]
    assert said == [("greedy", 8)]
