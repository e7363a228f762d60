"""SIGTERM: the agent ends in order, whatever it is in the middle of, and containers do not notice."""

import time
from pathlib import Path

import pytest

from sandbox.agent import STOP_S, AgentFailureError
from sandbox.gpunode import GpuNode
from tests.agent.harness import (
    PATIENCE_S,
    check_consistency,
    create,
    grants,
    limits_now,
    node_with_agent,
    run,
    settled,
    share,
)


def sockets(node: GpuNode) -> set[str]:
    """Those of the agent."""
    options = node.kubelet.options
    found = {path for folder in (options.plugin_dir, options.registry_dir) for path in folder.glob("*.sock")}
    return {path.name for path in found | set(node.home.glob("*.sock"))} - {"kubelet.sock"}


@pytest.mark.parametrize("plugin_watcher", [True, False])
async def test_it_ends_in_order_in_the_middle_of_an_allocate(short_tmp: Path, plugin_watcher: bool) -> None:
    flags = {"identity": "pods", "identity-budget": "1.8s"}
    async with node_with_agent(short_tmp, flags=flags, plugin_watcher=plugin_watcher) as node:
        uids = await run(node, share("one"), share("two", 40, 16))
        before = grants(await check_consistency(node))
        assert len(sockets(node)) == 3
        node.kubelet.pods_faults.hang = True  # identity waits for kubelet, kubelet for us
        (late,) = create(node, share("late"))
        await node.kubelet.changes.until(
            lambda: bool(node.kubelet.calls.open("Allocate")), what="an Allocate is open", deadline_s=PATIENCE_S
        )

        began = time.monotonic()
        await node.agent.stop()
        assert time.monotonic() - began < STOP_S
        assert sockets(node) == set()
        assert node.agent.entries()[-1]["msg"] == "agent_stopped"
        assert [entry for entry in node.agent.entries() if entry["level"] == "error"] == []
        for uid in uids:
            assert node.kubelet.runs(uid, "c")
            assert limits_now(node, uid).pod_uid == uid
        assert not (await node.kubelet.verdict(late, deadline_s=PATIENCE_S)).admitted, "kubelet did not hang"

        node.kubelet.pods_faults.hang = False
        await settled(node, "late")
        await node.start_agent()
        assert grants(await check_consistency(node)) == before


async def test_it_stops_in_order_while_no_peer_answers(short_tmp: Path) -> None:
    """The API server hangs and kubelet is gone."""
    async with node_with_agent(short_tmp) as node:
        await run(node, share("one"))
        node.server.faults.hang(times=1000)
        await node.kubelet.kill()
        await node.agent.stop()
        assert sockets(node) == set()
        with pytest.raises(AgentFailureError, match="does not answer"):
            await node.agent.usage()
