"""Plugins come, go and come back, through both ways of registration."""

import asyncio
import socket
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from deviceplugin.wire import pluginregistration_pb2 as registry_pb
from sandbox.apiserver import container, pod
from sandbox.barenode import CORE, MEMORY, BarePlugin, bare_node, fast
from sandbox.kubelet import Kubelet, KubeletOptions
from sandbox.kubelet.calls import PluginError
from tests.waiting import until

pytestmark = pytest.mark.thorough
ASKED = "GetDevicePluginOptions"
DRIVER = "d.example.org"


def core_plugin(directory: Path, name: str = "core.sock") -> BarePlugin:
    return BarePlugin(CORE, directory / name, {f"c{number:03}": -1 for number in range(100)})


@pytest.mark.parametrize(
    ("version", "resource", "said"),
    [
        (
            "v1alpha",
            CORE,
            'requested API version "v1alpha" is not supported by kubelet. Supported version is ["v1beta1"]',
        ),
        ("v1beta1", "cpu", 'the ResourceName "cpu" is invalid'),
        ("v1beta1", "kubernetes.io/gpu", 'the ResourceName "kubernetes.io/gpu" is invalid'),
    ],
)
async def test_registration_is_refused_with_the_reason(short_tmp: Path, version: str, resource: str, said: str) -> None:
    options = fast(short_tmp)
    async with Kubelet(options), BarePlugin(resource, options.plugin_dir / "p.sock", {"a": -1}) as plugin:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await plugin.register(options.kubelet_socket, version=version)
    assert said in (refused.value.details() or "")


async def test_register_returns_only_after_the_plugin_was_asked_for_its_options(short_tmp: Path) -> None:
    async with Kubelet(fast(short_tmp)) as kubelet, core_plugin(kubelet.options.plugin_dir) as plugin:
        await plugin.register(kubelet.options.kubelet_socket)
        assert [call.method for call in kubelet.calls.all] == ["GetDevicePluginOptions"]
        await kubelet.wait_allocatable(CORE, 100)


async def test_start_deletes_the_sockets_of_plugins_and_nothing_else(short_tmp: Path) -> None:
    options = fast(short_tmp)
    options.plugin_dir.mkdir()
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(options.plugin_dir / "old.sock"))
    (options.plugin_dir / "note").write_text("kept")
    async with Kubelet(options):
        assert sorted(path.name for path in options.plugin_dir.iterdir()) == ["kubelet.sock", "note"]


async def test_a_dead_stream_leaves_capacity_until_the_grace_period_is_over(short_tmp: Path) -> None:
    async with bare_node(replace(fast(short_tmp), grace_period_s=40.0)) as node:
        await node.core.stop()
        await node.kubelet.wait_allocatable(CORE, 0)
        assert node.kubelet.capacity(CORE) == 200
        refused = await node.kubelet.admit(pod("a", container(cores=10)))
        assert "no healthy devices present; cannot allocate unhealthy devices" in refused.message
        await node.kubelet.changes.until(
            lambda: node.kubelet.capacity(CORE) == 0, what="the grace period ends", deadline_s=60
        )
        late = await node.kubelet.admit(pod("b", container(cores=10)))
    assert late.admitted, "a resource that no plugin has is ignored"


async def test_unhealthy_and_removed_devices_are_not_given_out(short_tmp: Path) -> None:
    async with bare_node(fast(short_tmp), cores=10) as node:
        await node.core.change(broken=frozenset({"c000", "c001"}))
        await node.kubelet.wait_allocatable(CORE, 8)
        assert node.kubelet.capacity(CORE) == 10
        await node.core.change(devices={f"c{number:03}": -1 for number in range(5)})
        await node.kubelet.wait_allocatable(CORE, 3)
        verdict = await node.kubelet.admit(pod("a", container(cores=3)))
        assert node.kubelet.devices_of(verdict.uid, "main") == {CORE: {"c002", "c003", "c004"}}


@pytest.mark.parametrize("race", [True, False])
async def test_the_end_of_an_old_connection_takes_the_new_one_down_unless_fixed(short_tmp: Path, race: bool) -> None:
    async with Kubelet(replace(fast(short_tmp), registration_race=race)) as kubelet:
        directory = kubelet.options.plugin_dir
        async with core_plugin(directory, "old.sock") as old, core_plugin(directory, "new.sock") as new:
            for plugin in (old, new):
                await plugin.register(kubelet.options.kubelet_socket)
                await kubelet.wait_allocatable(CORE, 100)
            await kubelet.changes.until(lambda: new.streams == 1, what="the new stream is open", deadline_s=60)
            await old.stop()
            if race:
                await kubelet.wait_allocatable(CORE, 0)
            else:
                await asyncio.sleep(0.2)  # nothing is to happen, so there is nothing to wait for
                assert kubelet.allocatable(CORE) == 100


async def test_the_watcher_finds_a_plugin_and_keeps_its_socket_over_a_restart(short_tmp: Path) -> None:
    options = KubeletOptions(root=short_tmp)
    async with Kubelet(options) as kubelet, core_plugin(options.registry_dir) as plugin:
        await kubelet.wait_allocatable(CORE, 100)
        await kubelet.changes.until(lambda: bool(plugin.notified), what="the plugin is told", deadline_s=60)
        assert plugin.notified[0].plugin_registered
        await kubelet.restart()
        assert plugin.socket.exists()
        await kubelet.wait_allocatable(CORE, 100)


async def test_the_watcher_dials_a_new_socket_file_but_not_a_lost_connection(short_tmp: Path) -> None:
    options = fast(short_tmp)
    async with Kubelet(options) as kubelet, core_plugin(options.registry_dir) as plugin:
        await kubelet.wait_allocatable(CORE, 100)
        kept = plugin.socket.with_name(".kept")
        kept.hardlink_to(plugin.socket)
        await plugin.stop()
        kept.rename(plugin.socket)
        await kubelet.wait_allocatable(CORE, 0)
        infos = len(kubelet.calls.of("GetInfo"))
        await plugin.serve()
        await kubelet.wait_allocatable(CORE, 100)
        assert len(kubelet.calls.of("GetInfo")) > infos


async def test_removing_a_socket_disconnects_whichever_plugin_its_resource_has_now(short_tmp: Path) -> None:
    options = fast(short_tmp)
    async with Kubelet(options) as kubelet, core_plugin(options.registry_dir, "a.sock") as first:
        await kubelet.wait_allocatable(CORE, 100)
        async with core_plugin(options.registry_dir, "b.sock") as second:
            await kubelet.changes.until(lambda: len(kubelet.calls.of(ASKED)) == 2, what="both", deadline_s=60)
            await until(lambda: second.streams == 1)
            first.socket.unlink()
            await kubelet.wait_allocatable(CORE, 0)
            await until(lambda: second.streams == 0)
            assert first.streams == 1, "its connection is not looked at"


def driver_plugin(options: KubeletOptions, name: str, *versions: str) -> BarePlugin:
    """Its registration is all that it serves."""
    info = registry_pb.PluginInfo(type="DRAPlugin", name=DRIVER, supported_versions=versions)
    return BarePlugin(DRIVER, options.registry_dir / name, {}, info=info)


async def test_the_watcher_takes_a_driver_and_removes_it_by_its_endpoint(short_tmp: Path) -> None:
    options = fast(short_tmp)
    async with Kubelet(options) as kubelet, driver_plugin(options, "d.sock", "v1.DRAPlugin") as plugin:
        with pytest.raises(PluginError, match=r"^DRA driver d\.example\.org is not registered$"):
            kubelet.drivers.get(DRIVER)
        await until(lambda: plugin.notified)
        assert plugin.notified[0].plugin_registered
        assert kubelet.drivers.get(DRIVER).endpoint == str(plugin.socket), "before it is told so"
        await until(lambda: kubelet.drivers.connected(DRIVER))
        await until(lambda: len(kubelet.calls.of("NodeWatchResources")) > 1)  # again when the stream has ended
        plugin.socket.unlink()
        await until(lambda: not kubelet.drivers.of(DRIVER))


async def test_kubelet_calls_the_latest_plugin_that_is_connected_and_else_the_latest(short_tmp: Path) -> None:
    """Their sockets in the registry stay, as those of a killed process do."""
    options = fast(short_tmp)
    served = [BarePlugin(DRIVER, short_tmp / name, {}) for name in ("a", "b")]
    listed = [driver_plugin(options, f"{each.socket.name}.sock", "v1.DRAPlugin") for each in served]
    for each, own in zip(listed, served, strict=True):
        assert each.info is not None
        each.info.endpoint = str(own.socket)
    async with Kubelet(options) as kubelet, served[0], served[1], listed[0]:
        await until(lambda: kubelet.drivers.connected(DRIVER))
        async with listed[1]:
            await until(lambda: len(kubelet.drivers.connected(DRIVER)) == 2)
            assert kubelet.drivers.get(DRIVER).endpoint == str(served[1].socket)
            await served[1].stop()
            await until(lambda: kubelet.drivers.connected(DRIVER) == {str(served[0].socket)})
            assert kubelet.drivers.get(DRIVER).endpoint == str(served[0].socket)
            await served[0].stop()
            await until(lambda: not kubelet.drivers.connected(DRIVER))
            assert kubelet.drivers.get(DRIVER).endpoint == str(served[1].socket)


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        (
            ("1.0.0", "v1alpha3.Node"),
            (
                'none of services supported by the plugin (["1.0.0" "v1alpha3.Node"]) '
                'are supported by the kubelet (["v1.DRAPlugin" "v1beta1.DRAPlugin"])'
            ),
        ),
        ((), "empty list of supported gRPC services (aka supported versions)"),
    ],
)
async def test_a_driver_of_another_version_is_refused(short_tmp: Path, versions: tuple[str, ...], said: str) -> None:
    options = fast(short_tmp)
    async with Kubelet(options) as kubelet, driver_plugin(options, "d.sock", *versions) as plugin:
        await until(lambda: plugin.notified)
        assert not plugin.notified[0].plugin_registered
        assert plugin.notified[0].error.endswith(
            f"invalid supported gRPC versions of DRA driver plugin {DRIVER} at endpoint {plugin.socket}: {said}"
        )
        assert not kubelet.drivers.of(DRIVER)


def plugin_that_says(options: KubeletOptions, kind: str, name: str, version: str) -> BarePlugin:
    plugin = core_plugin(options.registry_dir)
    plugin.info = registry_pb.PluginInfo(type=kind, name=name, supported_versions=[version])
    return plugin


@pytest.mark.parametrize(
    ("kind", "name", "version", "said"),
    [
        ("CSIPlugin", "x", "1.0.0", "no handler registered for plugin type: CSIPlugin at socket {socket}"),
        (
            "DevicePlugin",
            CORE,
            "v1alpha",
            (
                "plugin validation failed with err: "
                "manager version, v1beta1, is not among plugin supported versions [v1alpha]"
            ),
        ),
        (
            "DevicePlugin",
            "x",
            "v1beta1",
            'plugin validation failed with err: invalid name of device plugin socket: the ResourceName "x" is invalid',
        ),
    ],
)
async def test_the_watcher_tells_a_plugin_why_it_is_refused(
    short_tmp: Path, kind: str, name: str, version: str, said: str
) -> None:
    options = fast(short_tmp)
    async with Kubelet(options) as kubelet, plugin_that_says(options, kind, name, version) as plugin:
        await until(lambda: plugin.notified)
        assert not plugin.notified[0].plugin_registered
        assert (
            plugin.notified[0].error
            == f"RegisterPlugin error -- {said.format(socket=plugin.socket, found='[v1alpha]')}"
        )
        assert kubelet.capacity(CORE) == 0


async def test_a_plugin_that_does_not_say_who_it_is_is_told_nothing_and_asked_again(short_tmp: Path) -> None:
    options = fast(short_tmp)
    async with Kubelet(options) as kubelet, core_plugin(options.registry_dir) as plugin:
        plugin.fail["GetInfo"] = "not now"
        why = "code = FailedPrecondition desc = not now"
        await until(lambda: any(call.error.endswith(why) for call in kubelet.calls.of("RegisterPlugin")))
        assert f"failed to get plugin info using RPC GetInfo at socket {plugin.socket}, err: rpc error: {why}" in {
            call.error.removeprefix("RegisterPlugin error -- ") for call in kubelet.calls.of("RegisterPlugin")
        }
        assert not plugin.notified
        plugin.fail.clear()
        await kubelet.wait_allocatable(CORE, 100)
        await until(lambda: plugin.notified)
        assert plugin.notified[0].plugin_registered


async def test_a_plugin_that_cannot_be_told_is_disconnected_and_tried_again(short_tmp: Path) -> None:
    options = fast(short_tmp)
    async with Kubelet(options) as kubelet, core_plugin(options.registry_dir) as plugin:
        plugin.gates["NotifyRegistrationStatus"] = asyncio.Event()
        await kubelet.wait_allocatable(CORE, 100)  # it is in use before it is told so
        plugin.fail["NotifyRegistrationStatus"] = "not now"
        plugin.gates["NotifyRegistrationStatus"].set()
        await kubelet.wait_allocatable(CORE, 0)
        await until(lambda: kubelet.calls.of("RegisterPlugin"))
        assert any(
            "failed to send registration status at socket" in each.error for each in kubelet.calls.of("RegisterPlugin")
        )
        plugin.fail.clear()
        await kubelet.wait_allocatable(CORE, 100)


async def test_a_socket_that_is_made_again_does_not_end_the_wait_of_its_path(short_tmp: Path) -> None:
    """The first wait takes 500 s here."""
    options = KubeletOptions(root=short_tmp, speed=0.001)
    async with Kubelet(options) as kubelet, core_plugin(options.registry_dir, "a.sock") as plugin:
        plugin.fail["GetInfo"] = "not now"
        await until(lambda: kubelet.calls.of("RegisterPlugin"))
        plugin.fail.clear()
        await plugin.stop()
        await plugin.serve()
        asked = len(kubelet.calls.of("GetInfo"))
        async with BarePlugin(MEMORY, options.registry_dir / "b.sock", {"m": -1}) as other:
            await until(lambda: len(kubelet.calls.of("GetInfo")) > asked)
            await until(lambda: other.notified or len(kubelet.calls.of("RegisterPlugin")) > 1)
        assert len(kubelet.calls.of("GetInfo")) == asked + 1, "the other path, which has its own wait"
        assert not plugin.notified


async def test_a_plugin_that_hangs_does_not_delay_the_others(short_tmp: Path) -> None:
    options = fast(short_tmp)
    async with Kubelet(options) as kubelet, core_plugin(options.registry_dir, "a.sock") as hanging:
        hanging.gates[ASKED] = asyncio.Event()
        await until(lambda: kubelet.calls.open(ASKED))
        async with BarePlugin(MEMORY, options.registry_dir / "b.sock", {"m": -1}):
            await kubelet.wait_allocatable(MEMORY, 1)
            assert len(kubelet.calls.open(ASKED)) == 1


async def test_an_old_kubelet_has_no_registry(short_tmp: Path) -> None:
    async with Kubelet(replace(fast(short_tmp), plugin_watcher=False)) as kubelet:
        assert not kubelet.options.registry_dir.exists()


async def test_a_hanging_kubelet_accepts_and_does_not_answer(short_tmp: Path) -> None:
    async with Kubelet(fast(short_tmp)) as kubelet, core_plugin(kubelet.options.plugin_dir) as plugin:
        kubelet.hang()
        registering = asyncio.create_task(plugin.register(kubelet.options.kubelet_socket))
        with pytest.raises(TimeoutError):
            await kubelet.wait_registered(CORE, deadline_s=0.2)
        kubelet.resume()
        await registering
        await kubelet.wait_registered(CORE)


async def test_a_wait_that_fails_says_what_did_not_come(short_tmp: Path) -> None:
    async with Kubelet(fast(short_tmp)) as kubelet:
        with pytest.raises(TimeoutError, match=r"until kubelet knows tencent\.com/vcuda-memory with healthy devices"):
            await kubelet.wait_registered(MEMORY, deadline_s=0.05)
