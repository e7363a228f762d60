"""The stand-in agents answer as the agent's own view does, each for its own node of the synthetic cluster."""

from benchmarks.cluster import fleet
from benchmarks.cluster.agents import agent_servers
from deviceplugin.cluster.view.live import LiveUse
from deviceplugin.kube.cluster_client import Address

NODES, PODS = 300, 900


async def test_every_node_has_an_agent_that_knows_its_gpus_and_pods() -> None:
    with agent_servers(NODES, PODS) as port:

        async def addresses() -> dict[str, Address]:
            return {fleet.node_name(number): Address(fleet.agent_address(number), port) for number in range(NODES)}

        live = LiveUse(addresses)
        found = await live.of(fleet.node_name(number) for number in range(NODES))
        await live.close()
    assert {use.error for use in found.values()} == {""}
    for number in (0, 255, 256, NODES - 1):
        use = found[fleet.node_name(number)]
        assert set(use.gpus) == {gpu.uuid for gpu in fleet.inventory_of(number).gpus}
        pods = {fleet.uid_of(fleet.running_name(pod)) for pod in range(number, PODS, NODES)}
        assert {uid for uid, _, _ in use.shares} == pods


def test_the_endpoints_are_those_of_all_nodes() -> None:
    slices = fleet.endpoint_slices(NODES, 5678)
    assert [len(each["endpoints"]) for each in slices] == [100, 100, 100]
    addresses = [end["addresses"][0] for each in slices for end in each["endpoints"]]
    assert len(set(addresses)) == NODES
    assert all(address.startswith("127.") for address in addresses)
