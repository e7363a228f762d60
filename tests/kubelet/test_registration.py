"""Staying registered, whatever happens to kubelet and to the sockets."""

import asyncio
import itertools
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NoReturn

import grpc
import pytest

from deviceplugin.errors import ConfigError, KubeletError
from deviceplugin.kubelet import grpc_endpoint
from deviceplugin.kubelet.grpc_endpoint import Endpoint, RegistryService, check_socket_path
from deviceplugin.kubelet.registration import SOCKETS, PluginEndpoint, RegistrationTimer
from deviceplugin.wire import deviceplugin_pb2 as pb
from sandbox.barenode import BarePlugin
from sandbox.kubelet import Kubelet, KubeletOptions
from sandbox.kubelet.registration import SCAN_S
from sandbox.station import ALL, NAMES, Station, pod_json, station
from tests.cancelled_starts import cancel_at_each_turn
from tests.kubelet.makers import fresh, inventory
from tests.waiting import PATIENCE_S, until

WATCHERS = (False, True)  # without a plugin watcher kubelet has no registry, and is reached through its socket


@asynccontextmanager
async def unregistered(base: Path, *, plugin_watcher: bool = True) -> AsyncIterator[tuple[Kubelet, Station]]:
    """A plugin that runs before kubelet does."""
    kubelet = Kubelet(KubeletOptions(root=base / "k", first_sync_s=0.05, plugin_watcher=plugin_watcher))
    if plugin_watcher:
        kubelet.options.registry_dir.mkdir(parents=True)
    made = Station(kubelet, inventory(1), base, sources=ALL)
    try:
        async with running(made):
            yield kubelet, made
    finally:
        await kubelet.stop()


@asynccontextmanager
async def running(made: Station) -> AsyncIterator[None]:
    task = asyncio.create_task(made.link().run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await made.close()


async def test_kubelet_may_come_after_the_agent(short_tmp: Path, subtests: pytest.Subtests) -> None:
    for watcher in WATCHERS:
        with subtests.test(plugin_watcher=watcher):
            async with unregistered(fresh(short_tmp), plugin_watcher=watcher) as (kubelet, _):
                await asyncio.sleep(0.05)
                await kubelet.start()
                await kubelet.wait_registered(NAMES.core, NAMES.memory)
                assert kubelet.capacity(NAMES.core) == 100
                assert kubelet.capacity(NAMES.memory) == 64


async def test_a_kubelet_that_restarts_finds_both_resources_again(short_tmp: Path, subtests: pytest.Subtests) -> None:
    for watcher in WATCHERS:
        with subtests.test(plugin_watcher=watcher):
            async with station(fresh(short_tmp), inventory(1), plugin_watcher=watcher) as node:
                for _ in range(3):
                    await node.kubelet.restart()
                    await node.kubelet.wait_registered(NAMES.core, NAMES.memory)
                assert (await node.kubelet.admit(pod_json("p", ("c", 20, 4)))).admitted


async def test_a_crash_looping_pod_outlives_a_kubelet_restart(short_tmp: Path, subtests: pytest.Subtests) -> None:
    """The plugin is back before kubelet admits its pods again; how fast it is back is measured below."""
    for watcher in WATCHERS:
        with subtests.test(plugin_watcher=watcher):
            async with station(fresh(short_tmp), inventory(1), plugin_watcher=watcher, retry_s=0.2) as node:
                verdict = await node.kubelet.admit(pod_json("p", ("c", 20, 4)))
                await node.kubelet.wait_running(verdict.uid)
                node.kubelet.exit_container(verdict.uid, "c")
                await node.kubelet.restart(after=(NAMES.core, NAMES.memory))
                await node.kubelet.wait_running(verdict.uid, starts=2, deadline_s=60)


async def test_a_socket_that_disappears_is_bound_again(short_tmp: Path, subtests: pytest.Subtests) -> None:
    for watcher, which in itertools.product(WATCHERS, SOCKETS.values()):
        with subtests.test(plugin_watcher=watcher, which=which):
            async with station(fresh(short_tmp), inventory(1), plugin_watcher=watcher) as node:
                directory = node.kubelet.options.registry_dir if watcher else node.kubelet.options.plugin_dir
                (bound,) = directory.glob(f"*{which}")
                before = bound.stat().st_ctime_ns
                bound.unlink()
                await until(partial(is_another, bound, before))
                # Kubelet may see the end of the old connection now: until it has the new one, no device is healthy,
                # and pods that it refuses meanwhile hold what they were given of the other resource.
                async with asyncio.timeout(PATIENCE_S):
                    await node.kubelet.wait_registered(NAMES.core, NAMES.memory)
                    while not (await node.kubelet.admit(pod_json("p", ("c", 5, 1)))).admitted:
                        await node.kubelet.wait_registered(NAMES.core, NAMES.memory)
                await until(lambda: all(plugin.streams == 1 for plugin in node.plugins))


async def test_a_resource_that_kubelet_holds_stays_while_the_other_is_registered_again(
    short_tmp: Path, subtests: pytest.Subtests, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kubelet that is slow, or that lost one connection, would refuse pods for nothing when the other one ends.

    The end of a stream is news; no look comes while both are open.
    """
    monkeypatch.setattr(grpc_endpoint, "_POLL_AT_REST_S", 3600.0)
    for watcher in WATCHERS:
        with subtests.test(plugin_watcher=watcher):
            async with station(fresh(short_tmp), inventory(1), plugin_watcher=watcher) as node:
                endpoints = node.kubelet.endpoints
                held, lost = (endpoints.table[name].connection for name in (NAMES.core, NAMES.memory))
                assert held is not None
                assert lost is not None
                await endpoints.disconnect(lost)
                await node.kubelet.wait_registered(NAMES.core, NAMES.memory)
                assert endpoints.table[NAMES.memory].connection is not lost
                assert endpoints.table[NAMES.core].connection is held


async def test_the_end_of_another_plugins_socket_for_the_resource_is_survived(short_tmp: Path) -> None:
    """Kubelet removes a plugin from its registry by the resource, and so whichever came last."""
    async with unregistered(short_tmp) as (kubelet, _):
        other = BarePlugin(NAMES.core, short_tmp / "other.sock", {"a": -1})
        listed = kubelet.options.registry_dir / "a.sock"
        async with other:
            await kubelet.start()
            await kubelet.wait_registered(NAMES.core, NAMES.memory)
            first = kubelet.endpoints.table[NAMES.core].connection
            other.socket.rename(listed)
            await kubelet.wait_allocatable(NAMES.core, 1)
            (own,) = kubelet.options.registry_dir.glob("*vcore.sock")
            own.unlink()  # the agent binds it again, and is the last one now
            await kubelet.wait_allocatable(NAMES.core, 100)
            last = kubelet.endpoints.table[NAMES.core].connection
            listed.unlink()
            await until(lambda: kubelet.endpoints.table[NAMES.core].connection not in (first, last))
            await kubelet.wait_allocatable(NAMES.core, 100)


def leave_dead_socket(path: Path) -> None:
    """As a process does that is killed: nobody listens, and the file stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))


async def test_what_a_killed_agent_left_costs_the_next_one_no_registration(short_tmp: Path) -> None:
    """After a boot kubelet dials the dead socket for 10 s, and takes one that comes to its path meanwhile for it.

    It lets it go at its next look: two seconds in which it refuses pods.
    """
    kubelet = Kubelet(KubeletOptions(root=short_tmp / "k"))
    for name in SOCKETS.values():
        leave_dead_socket(kubelet.options.registry_dir / f"{NAMES.domain}-{name}")
    async with kubelet, running(Station(kubelet, inventory(1), short_tmp, sources=ALL)):
        await kubelet.wait_registered(NAMES.core, NAMES.memory)
        taken = {name: kubelet.endpoints.table[name].connection for name in (NAMES.core, NAMES.memory)}
        await asyncio.sleep(2.5 * SCAN_S)  # nothing is to happen, so there is nothing to wait for
        assert {name: kubelet.endpoints.table[name].connection for name in taken} == taken
        assert len(list(kubelet.options.registry_dir.iterdir())) == 2


async def test_a_kubelet_that_waits_before_it_tries_a_socket_again_gets_another_one(short_tmp: Path) -> None:
    """By path, up to 122 s, also where the file is a new one; here the first wait takes 500 s."""
    kubelet = Kubelet(KubeletOptions(root=short_tmp / "k", speed=0.001))
    made = Station(kubelet, inventory(1), short_tmp, sources=ALL)
    answer, failed = made.plugins[0].GetDevicePluginOptions, asyncio.Event()

    async def fails(*_: object) -> NoReturn:
        failed.set()
        raise RuntimeError("the agent is frozen")

    made.plugins[0].GetDevicePluginOptions = fails  # type: ignore[method-assign, assignment]
    async with kubelet, running(made):
        await failed.wait()
        made.plugins[0].GetDevicePluginOptions = answer  # type: ignore[method-assign]
        await kubelet.wait_registered(NAMES.core, NAMES.memory)


async def test_a_kubelet_that_is_slow_after_it_has_asked_gets_no_other_socket(short_tmp: Path) -> None:
    """It would take the other one, end with this one, and let go of the resource when it finds this one gone."""
    kubelet = Kubelet(KubeletOptions(root=short_tmp / "k"))
    made = Station(kubelet, inventory(1), short_tmp, sources=ALL)
    answer = made.plugins[0].GetDevicePluginOptions

    async def slowly(
        request: pb.Empty, context: "grpc.aio.ServicerContext[pb.Empty, pb.DevicePluginOptions]"
    ) -> pb.DevicePluginOptions:
        await asyncio.sleep(3.5)
        return await answer(request, context)

    made.plugins[0].GetDevicePluginOptions = slowly  # type: ignore[method-assign]
    async with kubelet, running(made):
        await kubelet.wait_registered(NAMES.core, NAMES.memory)
        await asyncio.sleep(2.5 * SCAN_S)  # nothing is to happen, so there is nothing to wait for
        assert len(kubelet.calls.of("GetDevicePluginOptions")) == 2
        assert kubelet.allocatable(NAMES.core) == 100


def is_another(bound: Path, before: int) -> bool:
    return bound.exists() and bound.stat().st_ctime_ns != before


async def test_a_kubelet_without_a_plugin_watcher_is_reached_through_its_socket(short_tmp: Path) -> None:
    async with station(short_tmp, inventory(1), plugin_watcher=False) as node:
        assert sorted(path.name for path in node.kubelet.options.plugin_dir.glob("v*.sock")) == sorted(SOCKETS.values())


async def test_a_stopped_agent_leaves_no_socket(short_tmp: Path) -> None:
    async with station(short_tmp, inventory(1), plugin_watcher=False) as node:
        directory = node.kubelet.options.plugin_dir
        assert list(directory.glob("v*.sock"))
    assert not list(directory.glob("v*.sock"))


async def test_the_restart_of_kubelet_is_met_at_once_and_not_at_the_next_look(
    short_tmp: Path, subtests: pytest.Subtests, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next look is in an hour here. The real kubelet admits its pods 0.87 s after its registration server."""
    monkeypatch.setattr(grpc_endpoint, "POLL_BEHIND_INOTIFY_S", 3600.0)
    for watcher in WATCHERS:
        with subtests.test(plugin_watcher=watcher):
            async with station(fresh(short_tmp), inventory(1), plugin_watcher=watcher) as node:
                for _ in range(3):
                    await node.kubelet.restart()
                    await node.kubelet.wait_registered(NAMES.core, NAMES.memory)


async def test_a_kubelet_that_was_away_for_long_is_met_at_once_too(
    short_tmp: Path, subtests: pytest.Subtests, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The killed one leaves its socket, so tries that are in vain have slowed down to one a second meanwhile."""
    for watcher in WATCHERS:
        with subtests.test(plugin_watcher=watcher):
            async with station(fresh(short_tmp), inventory(1), plugin_watcher=watcher) as node:
                await node.kubelet.kill()
                await asyncio.sleep(4.0)  # the longer, the slower
                with monkeypatch.context() as patch:
                    patch.setattr(grpc_endpoint, "POLL_BEHIND_INOTIFY_S", 3600.0)
                    await asyncio.sleep(0.6)  # the last short look is over
                    await node.kubelet.start()
                    await node.kubelet.wait_registered(NAMES.core, NAMES.memory)


async def test_sockets_stay_where_they_are_while_no_kubelet_listens(short_tmp: Path) -> None:
    """A kubelet that starts just then would dial the old ones, and refuse its new pods until it finds the others."""
    async with station(short_tmp, inventory(1)) as node:
        registry = node.kubelet.options.registry_dir
        before = {path: grpc_endpoint.identity_of(path) for path in registry.iterdir()}
        await node.kubelet.kill()
        await asyncio.sleep(7.0)  # without streams; twice this long was silence before
        assert {path: grpc_endpoint.identity_of(path) for path in registry.iterdir()} == before
        kubelet, listener = node.kubelet.options.kubelet_socket, socket.socket(socket.AF_UNIX)
        kubelet.unlink()
        with listener:  # as of a kubelet that starts, and has no time to look for plugins yet
            listener.bind(str(kubelet))
            listener.listen()
            await asyncio.sleep(3.0)
            assert {path: grpc_endpoint.identity_of(path) for path in registry.iterdir()} == before
            await until(lambda: {path: grpc_endpoint.identity_of(path) for path in registry.iterdir()} != before)
        kubelet.unlink()


def test_a_path_that_the_kernel_would_refuse_is_named() -> None:
    check_socket_path(Path("/" + "a" * 106))
    with pytest.raises(ConfigError, match="has 108 bytes and Linux allows 107"):
        check_socket_path(Path("/" + "a" * 107))


async def test_a_file_in_the_way_is_left_alone(short_tmp: Path) -> None:
    async with station(short_tmp, inventory(1)) as node:
        path = short_tmp / "vcore.sock"
        path.write_text("somebody's notes")
        with pytest.raises(KubeletError, match="exists and is not a socket"):
            await PluginEndpoint(node.plugins[0], path).start()
        assert path.read_text() == "somebody's notes"


class FakeClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_retries_slow_down_to_one_a_second_and_complain_rarely() -> None:
    clock = FakeClock()
    timer = RegistrationTimer(clock)
    waits, complaints = [], 0
    for _ in range(40):
        assert timer.may_try()
        complaints += timer.failed()
        start = clock.now
        while not timer.may_try():
            clock.now += 0.005
        waits.append(clock.now - start)
    assert waits[0] < 0.03
    assert max(waits) < 1.01
    assert complaints <= 3
    timer.succeeded()
    timer.failed()
    clock.now += 0.021
    assert timer.may_try()


def test_silence_is_borne_longer_each_time() -> None:
    clock = FakeClock()
    timer = RegistrationTimer(clock)
    clock.now += 1.9
    assert not timer.is_silent()
    clock.now += 0.2
    assert timer.is_silent()
    timer.succeeded()
    clock.now += 2.1
    assert not timer.is_silent()
    clock.now += 2.0
    assert timer.is_silent()
    assert timer.streaming()
    clock.now += 2.1
    assert timer.is_silent()


async def test_an_agent_that_ends_while_it_binds_leaves_no_server(short_tmp: Path) -> None:
    endpoint = Endpoint(short_tmp / "vcore.sock", registry=RegistryService("tencent.com/vcuda-core"))
    await cancel_at_each_turn(endpoint.start, endpoint.stop)
    assert not endpoint.path.exists()


def test_grpc_does_not_crash_where_an_agent_ends_while_it_binds_again() -> None:
    """Dropped half started or half stopped, a server crashed two processes of three within 150 such ends."""
    command = [sys.executable, "-m", "tests.kubelet.ending_while_binding", "300", "1"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert found.returncode == 0, found.stderr
