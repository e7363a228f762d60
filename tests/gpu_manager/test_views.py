"""display.GPUDisplay over a real unix socket."""

import socket
import stat
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from deviceplugin.errors import ConfigError
from deviceplugin.gpu_manager.views import DisplayServer, usages
from deviceplugin.ledger.grant import GrantId
from deviceplugin.model.allocation import ContainerRef, ContainerRole
from deviceplugin.model.gpu import ContainerUse, GpuUse
from deviceplugin.model.pod import Pod, PodContainer
from deviceplugin.observe.graph import draw
from deviceplugin.observe.node_view import Rendering
from deviceplugin.structs import replace
from deviceplugin.wire import display_pb2 as pb
from deviceplugin.wire import display_pb2_grpc as rpc
from tests.cancelled_starts import cancel_at_each_turn
from tests.observe.pictures import grant, pcie, uuid
from tests.observe.views import StillView

PICTURE = pcie(
    4, grant("ml/train/main", 0, 1), grant("ml/nb/c", 2, cores=30, blocks=10), grant("web/nb/c", 2, cores=5, blocks=1)
)


@pytest.fixture
def view() -> StillView:
    return StillView(PICTURE)


@pytest.fixture
async def path(view: StillView, short_tmp: Path) -> AsyncIterator[Path]:
    found = short_tmp / "display.sock"
    server = DisplayServer(Rendering(view, period_s=10.0), version="1.2.3")
    await server.start(found)
    yield found
    await server.stop()


@pytest.fixture
async def stub(path: Path) -> AsyncIterator[rpc.GPUDisplayStub]:
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        yield rpc.GPUDisplayStub(channel)


async def test_the_three_calls_of_gpu_manager_answer(stub: rpc.GPUDisplayStub) -> None:
    assert (await stub.PrintGraph(pb.GraphRequest(), timeout=5)).graph == draw(PICTURE)
    assert (await stub.Version(pb.VersionRequest(), timeout=5)).version == "1.2.3"
    usage = (await stub.PrintUsages(pb.UsageRequest(), timeout=5)).usage
    assert set(usage) == {"uid-ml-train", "uid-ml-nb", "uid-web-nb"}
    train = usage["uid-ml-train"]
    assert train.project == "ml"
    assert (train.spec["main"].gpu, train.spec["main"].mem) == (2, 2 * 80 * 1024)
    assert [(dev.id, dev.card_idx, dev.device_mem) for dev in train.stat["main"].dev] == [
        ("GPU-00000000", "0", 81920),
        ("GPU-00000001", "1", 81920),
    ]
    assert (usage["uid-web-nb"].spec["c"].gpu, usage["uid-web-nb"].spec["c"].mem) == (pytest.approx(0.05), 256)


def test_a_device_has_the_fields_of_gpu_managers_message() -> None:
    """Its field numbers and wire types: id = 1 and card_idx = 2 are texts, gpu = 10, mem = 11 and device_mem = 13
    floats, pids = 12 packed integers."""
    use = ContainerUse((GpuUse(uuid(2), memory_bytes=3 << 20, cores=12.5, pids=(7, 9)),), processes=2)
    inventory = PICTURE.inventory
    assert inventory is not None
    gpus = tuple(replace(each, bus_id="00000000:07:00.0") for each in inventory.gpus)
    picture = replace(PICTURE, inventory=replace(inventory, gpus=gpus), uses={GrantId("g-ml-nb-c"): use})
    (dev,) = usages(picture).usage["uid-ml-nb"].stat["c"].dev
    expected = b"\x0a\x1000000000:07:00.0" + b"\x12\x012" + b"\x55" + struct.pack("<f", 12.5)
    expected += b"\x5d" + struct.pack("<f", 3.0) + b"\x62\x02\x07\x09" + b"\x6d" + struct.pack("<f", 81920.0)
    assert dev.SerializeToString(deterministic=True) == expected


def test_the_submitter_and_the_cluster_are_those_of_the_pod() -> None:
    """In gpu-manager: the variable SUBMITTER of a container, and the annotation clusterName."""
    ref = next(grant.allocation.owner.pod for grant in PICTURE.grants if grant.allocation.owner.pod.uid == "uid-ml-nb")
    container = PodContainer(ContainerRef(ref, "c"), ContainerRole.APP, 0, 5, 1, env={"SUBMITTER": "ann"})
    pod = Pod(ref, (container,), annotations={"clusterName": "cls1"})
    picture = replace(PICTURE, pods={ref.uid: pod})
    usage = usages(picture).usage
    assert (usage["uid-ml-nb"].user, usage["uid-ml-nb"].cluster) == ("ann", "cls1")
    assert (usage["uid-ml-train"].user, usage["uid-ml-train"].cluster) == ("", "")
    hidden = usages(picture.without_names()).usage.values()
    assert {(each.user, each.cluster) for each in hidden} == {("", "")}


def test_what_containers_use_is_unset_where_it_is_not_known() -> None:
    for pod in usages(PICTURE).usage.values():
        for devices in pod.stat.values():
            assert all((dev.gpu, dev.mem, list(dev.pids)) == (0, 0, []) for dev in devices.dev)


def test_what_containers_use_is_in_gpu_managers_units() -> None:
    use = ContainerUse((GpuUse(uuid(2), memory_bytes=3 << 20, cores=12.5, pids=(7, 9)),), processes=2)
    (dev,) = usages(replace(PICTURE, uses={GrantId("g-ml-nb-c"): use})).usage["uid-ml-nb"].stat["c"].dev
    assert (dev.gpu, dev.mem, list(dev.pids)) == (12.5, 3.0, [7, 9])


async def test_the_socket_is_for_root_and_its_group_and_goes_with_the_server(
    path: Path, view: StillView, short_tmp: Path
) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    other = short_tmp / "other.sock"
    server = DisplayServer(Rendering(view, period_s=10.0), version="1")
    await server.start(other)
    await server.stop()
    assert not other.exists()


async def test_a_bug_in_a_view_goes_into_the_log_and_not_to_the_caller(
    stub: rpc.GPUDisplayStub, view: StillView
) -> None:
    view.fails = True
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.PrintGraph(pb.GraphRequest(), timeout=5)
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert caught.value.details() == "vcuda internal error; see the agent log on this node"


async def test_a_stale_socket_is_replaced(view: StillView, short_tmp: Path) -> None:
    path = short_tmp / "display.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    server = DisplayServer(Rendering(view, period_s=10.0), version="1")
    await server.start(path)
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        assert (await rpc.GPUDisplayStub(channel).Version(pb.VersionRequest(), timeout=5)).version == "1"
    await server.stop()


async def test_a_socket_that_another_process_serves_is_left_alone(view: StillView, short_tmp: Path) -> None:
    path = short_tmp / "display.sock"
    with socket.socket(socket.AF_UNIX) as alive:
        alive.bind(str(path))
        alive.listen()
        with pytest.raises(ConfigError, match=r"--display-socket: another process serves /tmp/.*; stop it or give"):
            await DisplayServer(Rendering(view, period_s=10.0), version="1").start(path)
        assert path.exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("x" * 120, "--display-socket: the path has 1.. bytes and a unix socket takes 107; give a shorter one"),
        ("none/display.sock", "--display-socket: the directory /tmp/.*/none does not exist; create it first"),
        ("file", "--display-socket: /tmp/.*/file exists and is not a socket; remove it or give another path"),
        (
            "/proc/display.sock",
            "--display-socket: /proc/display.sock cannot be used for a socket; give a writable path",
        ),
        ("file/x", "--display-socket: /tmp/.*/file/x cannot be used: Not a directory"),
    ],
)
async def test_a_path_that_cannot_be_served_is_a_sentence(
    view: StillView, short_tmp: Path, name: str, message: str
) -> None:
    (short_tmp / "file").write_text("")
    with pytest.raises(ConfigError, match=message):
        await DisplayServer(Rendering(view, period_s=10.0), version="1").start(short_tmp / name)


async def test_an_agent_that_ends_while_it_binds_leaves_no_server(view: StillView, short_tmp: Path) -> None:
    server = DisplayServer(Rendering(view, period_s=10.0), version="1.2.3")
    await cancel_at_each_turn(lambda: server.start(short_tmp / "display.sock"), server.stop)
