"""gpu-manager's client at a real agent: its socket is there for pods that ask for it, as long as the grant."""

from pathlib import Path

import grpc
import pytest

from deviceplugin.wire import registration_pb2 as pb
from deviceplugin.wire import registration_pb2_grpc as rpc
from sandbox.gpunode import GpuNode
from sandbox.runtime import RuntimeContainer, StandInRuntime
from sandbox.station import pod_json
from tests.agent.harness import PATIENCE_S, delete, node_with_agent, run, share, start_unsynced, until_held_by
from tests.gpu_manager.client_reader import read_limits, read_pids
from tests.waiting import RETRYING

ID = "a1" * 32
ASKS = {"tencent.com/vcuda-socket": "true"}


async def register(node: GpuNode, uid: str, container_id: str = ID) -> None:
    """As the client in the container: through its mount, once; it waits until the socket is served."""
    socket = node.kubelet.container_view(uid, "c").host_path("/etc/vcuda/vcuda.sock")
    async with grpc.aio.insecure_channel(f"unix:{socket}", options=RETRYING) as channel:
        request = pb.VDeviceRequest(pod_uid=uid, container_id=container_id)
        await rpc.VCUDAServiceStub(channel).RegisterVDevice(request, timeout=60, wait_for_ready=True)


def seen(node: GpuNode, uid: str, path: str) -> Path:
    return node.kubelet.container_view(uid, "c").host_path(f"/etc/vcuda/{path}")


async def test_a_container_registers_and_reads_its_files_until_its_grant_ends(short_tmp: Path) -> None:
    """The next life of a container begins without what the last one registered. Whole GPUs have no socket."""
    async with node_with_agent(short_tmp) as node, StandInRuntime(short_tmp / "cri.sock") as runtime:
        pods = [share("p", 30, 8, annotations=ASKS), share("q", 20, 4), pod_json("w", ("c", 100, 0), annotations=ASKS)]
        uid, neighbour, whole = await run(node, *pods)
        runtime.containers.append(RuntimeContainer(ID, uid, "c"))
        await register(node, uid)
        limits = read_limits(seen(node, uid, f"{ID}/vcuda.config").read_bytes())
        assert (limits.pod_uid, limits.cores, limits.memory_bytes) == (uid, 30, 8 << 28)
        assert read_pids(seen(node, uid, f"{ID}/pids.config").read_bytes()) == ()
        assert not seen(node, neighbour, "vcuda.sock").exists(), "its pod did not ask"
        assert not seen(node, whole, "vcuda.sock").exists()

        node.kubelet.exit_container(uid, "c", code=1)
        await node.kubelet.wait_running(uid, starts=2, deadline_s=PATIENCE_S)
        assert not seen(node, uid, ID).exists()
        await register(node, uid, "b2" * 32)
        assert seen(node, uid, f"{'b2' * 32}/vcuda.config").exists()

        await delete(node, *pods)
        await until_held_by(node, [])

        async def empty() -> bool:
            return not [
                path for path in node.grants.rglob("*") if not path.name.startswith(".boot") and path.name != "gpus"
            ]

        await node.agent.until(empty, what="nothing is left of the grants", deadline_s=PATIENCE_S)


async def test_with_the_flag_every_share_has_its_own_socket(short_tmp: Path) -> None:
    async with node_with_agent(short_tmp, flags={"vcuda-socket": "true"}) as node:
        uid, neighbour = await run(node, share("p"), share("q"))
        await register(node, uid)
        assert seen(node, uid, "pids.config").exists()
        assert not seen(node, neighbour, "pids.config").exists(), "the socket says whose it is"
        assert seen(node, neighbour, "vcuda.sock").is_socket()


async def test_the_next_agent_serves_sockets_again_before_anybody_shows_the_pods(short_tmp: Path) -> None:
    async with node_with_agent(short_tmp) as node:
        (uid,) = await run(node, share("p", annotations=ASKS))
        await register(node, uid)
        await node.agent.kill()
        node.kubelet.pods_faults.status = 403
        async with node.server.refuse():
            await start_unsynced(node)
            await register(node, uid, "b2" * 32)
            assert seen(node, uid, f"{'b2' * 32}/vcuda.config").exists()
            assert seen(node, uid, f"{'b2' * 32}/vcuda.config").exists()


async def test_a_path_too_long_for_sockets_is_said_once_and_costs_nothing_else(short_tmp: Path) -> None:
    deep = short_tmp / ("d" * 80)
    async with node_with_agent(short_tmp, flags={"virtual-manager-path": deep, "vcuda-socket": "true"}) as node:
        await run(node, share("p"), share("q"))
        said = node.agent.entries("registration_unavailable")
        assert len(said) == 1
        length = len(str(deep)) + len("/g-0123456789abcdef/vcuda.sock")
        assert f"has {length} bytes and Linux allows 107" in said[0]["error"]
        assert "--virtual-manager-path" in said[0]["error"]


@pytest.mark.parametrize("name", ["../other", "x" * 200])
async def test_nonsense_is_refused_and_the_agent_lives(short_tmp: Path, name: str) -> None:
    async with node_with_agent(short_tmp) as node:
        (uid,) = await run(node, share("p", annotations=ASKS))
        with pytest.raises(grpc.aio.AioRpcError):
            await register(node, uid, name)
        await register(node, uid)
