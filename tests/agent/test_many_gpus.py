"""A node with more GPUs than eight, and more than 32."""

from pathlib import Path

from sandbox.emulated_gpus import PROFILES
from sandbox.station import pod_json
from tests.agent.harness import check_consistency, grants, minors, node_with_agent, refused, run, share
from tests.offered import blocks_of_each


async def test_every_gpu_of_a_large_node_is_offered_given_and_found_again(short_tmp: Path) -> None:
    async with node_with_agent(short_tmp, profile=PROFILES / "many-40.json") as node:
        blocks = blocks_of_each(node.gpus.profile)
        count = len(blocks)
        assert node.kubelet.allocatable(node.names.core) == 100 * count
        assert node.kubelet.allocatable(node.names.memory) == sum(blocks)

        last = share("last", 40, 8, annotations={"tencent.com/predicate-gpu-idx-0": str(count - 1)})
        (beside, joins) = await run(node, last, share("joins", 30, 8))
        assert minors(node, beside) == minors(node, joins) == [count - 1], "shares go where one is already"
        (linked,) = await run(node, pod_json("linked", ("c", 800, 0)))
        assert len(minors(node, linked)) == 8
        (rest,) = await run(node, pod_json("rest", ("c", 100 * (count - 9), 0)))
        taken = [minor for uid in (beside, linked, rest) for minor in minors(node, uid)]
        assert sorted(taken) == list(range(count))
        assert "30 cores" in await refused(node, share("too-large", 30, blocks[-1] - 8))

        before = grants(await check_consistency(node))
        assert (await node.agent.graph()).count("GPU") >= count
        await node.agent.kill()
        node.journal.unlink()
        await node.start_agent()
        assert grants(await check_consistency(node)) == before
