"""An operator takes GPUs out of a node, and the agent keeps new work from them."""

from pathlib import Path

from deviceplugin.model.allocation import GpuShare, PodUid
from deviceplugin.model.annotation_names import AnnotationNames
from deviceplugin.model.annotations import PodAllocation, format_allocation
from deviceplugin.model.gpu import GpuUuid
from sandbox.gpunode import GpuNode
from tests.agent.harness import NODE, PATIENCE_S, minors, node_with_agent, phase, refused, run, share, until_usage

NAMES = AnnotationNames()
HAMI = "hami.io/device-cordon"


def make_node(node: GpuNode, annotations: dict[str, str] | None = None) -> None:
    meta = {"name": NODE, "annotations": annotations or {}}
    node.server.store.create("nodes", {"apiVersion": "v1", "kind": "Node", "metadata": meta})


def annotate(node: GpuNode, annotations: dict[str, str | None]) -> None:
    node.server.store.patch("nodes", NODE, {"metadata": {"annotations": annotations}}, namespace="")


async def until_cordoned(node: GpuNode, *wanted: int) -> None:
    await until_usage(
        node,
        lambda usage: {gpu.minor for gpu in usage.gpus if gpu.cordoned} == set(wanted),
        what=f"GPUs {wanted} are shown as cordoned",
    )


async def test_a_cordon_is_followed_within_moments_and_shown_everywhere(short_tmp: Path) -> None:
    async with node_with_agent(short_tmp, started=False) as node:
        make_node(node)
        await node.start_agent()
        (first,) = await run(node, share("first"))
        assert minors(node, first) == [0]
        uuid = GpuUuid(next(gpu.uuid for gpu in (await node.agent.usage()).gpus if gpu.minor == 0))

        annotate(node, {NAMES.cordon: f"{uuid},1,gpu3", HAMI: "2"})
        await until_cordoned(node, 0, 1, 2)
        (warning,) = node.agent.entries("cordon_unmatched")
        assert warning["error"].startswith("no GPU of this node is named gpu3; write UUIDs or minor numbers")
        (second,) = await run(node, share("second"))
        assert minors(node, second) == [3]
        assert (await node.agent.get("/graph")).text.count("cordoned") == 3
        metrics = (await node.agent.get("/metrics")).text
        assert f'vcuda_gpu_cordoned{{node="{NODE}",uuid="{uuid}"}} 1.0' in metrics
        assert metrics.count("vcuda_gpu_cordoned{") == 8

        annotate(node, {NAMES.cordon: None, HAMI: None})
        await until_cordoned(node)
        (third,) = await run(node, share("third"))
        assert minors(node, third) == [0], "the fullest that has room"

        annotate(node, {NAMES.cordon: "0,1,2,3,4,5,6,7"})
        await until_cordoned(node, *range(8))
        bound = share("bound-before")
        text = format_allocation(PodAllocation(PodUid(bound["metadata"]["uid"]), {"c": (GpuShare(uuid, 20, 8),)}))
        bound["metadata"]["annotations"] = {NAMES.allocation: text}
        (fourth,) = await run(node, bound)
        assert minors(node, fourth) == [0]
        assert "GPUs 0-7 are cordoned; ask for less, or have a GPU uncordoned" in await refused(node, share("fifth"))


async def test_nvml_is_closed_on_request_and_the_node_goes_on(short_tmp: Path) -> None:
    """NVML D9: a reset of a GPU and an upgrade of the driver need every client of the driver gone."""

    async def nvml_open(node: GpuNode, wanted: int) -> None:
        async def shown() -> bool:
            return f'vcuda_nvml_open{{node="{NODE}"}} {wanted}.0' in (await node.agent.get("/metrics")).text

        await node.agent.until(shown, what=f"vcuda_nvml_open is {wanted}", deadline_s=PATIENCE_S)

    async with node_with_agent(short_tmp, started=False) as node:
        make_node(node, {NAMES.cordon: "0,1"})
        await node.start_agent()
        (first,) = await run(node, share("first"))
        assert minors(node, first) == [2], "a fresh agent knows the cordon before it places anything"
        assert node.gpus.command("clients") != ""
        assert "libnvidia-ml" in Path(f"/proc/{node.agent.pid}/maps").read_text()

        annotate(node, {NAMES.close_nvml: "true"})
        await nvml_open(node, 0)
        assert node.gpus.command("clients") == ""
        assert "libnvidia-ml" not in Path(f"/proc/{node.agent.pid}/maps").read_text(), (
            "its mount could not be unmounted"
        )
        node.gpus.command("reset", 5)
        assert "GPUs 0-7 are cordoned" in await refused(node, share("second"))
        assert phase(node, "first") == "Running"
        usage = await node.agent.usage()
        assert [gpu.cordoned for gpu in usage.gpus] == [True] * 8
        assert (await node.agent.get("/readyz")).status == 200

        await node.agent.kill()
        node.gpus.command("driver", "unload")
        await node.start_agent()
        assert "GPUs 0-7 are cordoned" in await refused(node, share("third"))
        node.gpus.command("driver", "load")

        annotate(node, {NAMES.close_nvml: None})
        await nvml_open(node, 1)
        await until_cordoned(node, 0, 1)
        (fourth,) = await run(node, share("fourth"))
        assert minors(node, first) == minors(node, fourth) == [2], "the grants of before still count"


async def test_an_agent_that_may_not_watch_its_node_goes_on_without_a_cordon(short_tmp: Path) -> None:
    async with node_with_agent(short_tmp, started=False) as node:
        make_node(node, {NAMES.cordon: "0"})
        node.server.faults.fail(403, times=10_000, method="GET", path="/api/v1/nodes")
        await node.start_agent()
        (first,) = await run(node, share("first"))
        assert minors(node, first) == [0]
        assert node.agent.entries("cordon_unknown")
