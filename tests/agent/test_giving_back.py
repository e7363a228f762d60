"""Device IDs come back from every pod that got them and ended, without a new request."""

from pathlib import Path

from tests.agent.harness import (
    PATIENCE_S,
    check_consistency,
    create,
    delete,
    grant_directories,
    holders,
    node_with_agent,
    refused,
    run,
    share,
    until_held_by,
    with_cpu,
)


async def test_pods_that_were_refused_deleted_by_force_or_ended_give_back_what_they_got(short_tmp: Path) -> None:
    async with node_with_agent(short_tmp, cpu_cores=4) as node:
        (stays,) = await run(node, share("stays"))
        said = await refused(node, with_cpu(share("greedy"), 5))
        assert "cpu" in said
        calls = len(node.kubelet.calls.of("Allocate"))
        assert calls == 4, "both resources of both pods were answered"
        usage = await until_held_by(node, [stays])
        assert grant_directories(node) == {usage.containers[0].grant}
        assert len(node.kubelet.calls.of("Allocate")) == calls
        await check_consistency(node)

        forced = share("forced")
        await run(node, forced)
        await delete(node, forced, grace=0)
        await until_held_by(node, [stays])
        await check_consistency(node)

        (ended,) = await run(node, share("job", restart_policy="Never"))
        node.kubelet.exit_container(ended, "c", code=0)
        usage = await until_held_by(node, [stays])
        assert sum(gpu.cores_allocated for gpu in usage.gpus) == 20
        assert ended in {pod["metadata"]["uid"] for pod in node.kubelet.pod_list()}, "it is still listed"


async def test_a_pod_that_is_deleted_between_allocate_and_start_gives_back_what_it_got(short_tmp: Path) -> None:
    async with node_with_agent(short_tmp, image_pull_s=2000.0) as node:
        pods = [share("pulling"), share("pulling-too")]
        uids = create(node, *pods)
        for uid in uids:
            assert (await node.kubelet.verdict(uid, deadline_s=PATIENCE_S)).admitted
        assert holders(await node.agent.usage()) == set(uids)
        await delete(node, pods[0])
        usage = await until_held_by(node, uids[1:])
        assert grant_directories(node) == {usage.containers[0].grant}
        assert not node.kubelet.calls.of("PreStartContainer")


async def test_a_kubelet_that_hears_of_the_end_later_than_we_do_is_asked_again_soon(short_tmp: Path) -> None:
    async with node_with_agent(short_tmp, flags={"allocation-check-period": "1h"}, fed_by_server=False) as node:
        pods = [share("ended"), share("stays")]
        ended, stays = create(node, *pods)
        for pod, uid in zip(pods, (ended, stays), strict=True):
            node.kubelet.submit(pod)
            await node.kubelet.wait_running(uid, deadline_s=PATIENCE_S)
        await delete(node, pods[0], grace=0)
        asked = node.kubelet.pods_requests

        async def looked() -> bool:
            return node.kubelet.pods_requests > asked

        await node.agent.until(looked, what="the agent has looked", deadline_s=PATIENCE_S)
        assert holders(await node.agent.usage()) == {ended, stays}, "what kubelet shows is held"
        node.kubelet.delete(ended)
        await until_held_by(node, [stays])


async def test_a_terminating_pod_holds_its_slots_until_its_containers_are_gone(short_tmp: Path) -> None:
    async with node_with_agent(short_tmp, termination_s=20.0) as node:
        uid, stays = await run(node, share("slow-to-end"), share("stays"))
        node.server.store.delete("pods", "slow-to-end", namespace="default")
        looks = 0

        async def gone() -> bool:
            nonlocal looks
            looks += 1
            held = holders(await node.agent.usage())  # asked first: a container that still runs ran at that moment too
            return not node.kubelet.runs(uid, "c") or uid not in held

        await node.agent.until(gone, what="the container is gone", deadline_s=PATIENCE_S)
        assert not node.kubelet.runs(uid, "c"), "its slots were given back while it still ran"
        assert looks > 5, "it did take its time"
        await until_held_by(node, [stays])
