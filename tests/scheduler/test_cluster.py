"""What the webhook knows of the cluster's GPUs, and what it costs while nodes change."""

from deviceplugin.cluster.extender.extender import Extender
from deviceplugin.kube.cluster_client import ClusterClient
from deviceplugin.kube.credentials import Credentials
from deviceplugin.kube.transport import Transport
from deviceplugin.model.node import ClusterNode
from deviceplugin.model.units import ResourceNames
from deviceplugin.scheduler.cluster import ClusterWatch
from deviceplugin.structs import replace
from tests.budget.dearest import cost_of
from tests.cluster.extender.api import MemoryApi
from tests.cluster.extender.makers import node


def watch_of(nodes: int) -> ClusterWatch:
    extender = Extender(MemoryApi())
    watch = ClusterWatch(ClusterClient(Transport(Credentials(None))), extender, names=ResourceNames())
    for number in range(nodes):
        changed(watch, node(f"n{number}", 8))
    return watch


def changed(watch: ClusterWatch, found: ClusterNode) -> None:
    watch._put_node(found)


def cost(watch: ClusterWatch) -> int:
    async def look() -> None:
        assert watch.known.most >= 8

    return cost_of(look).total


async def test_new_gpus_are_known_at_once() -> None:
    watch = watch_of(3)
    assert {each.model for each in watch.known.kinds} == {"Tesla T4"}
    changed(watch, node("n1", 8, model="H100"))
    assert {each.model for each in watch.known.kinds} == {"H100", "Tesla T4"}
    changed(watch, replace(node("n1", 8, model="H100"), ready=False))
    assert {each.model for each in watch.known.kinds} == {"H100", "Tesla T4"}


def test_a_node_that_changes_all_the_time_costs_the_reviews_of_a_large_cluster_nothing() -> None:
    watch = watch_of(300)
    first = cost(watch)
    for turn in range(20):
        changed(watch, node("n7", 8, model=f"model {turn}"))
        assert cost(watch) < first / 20


def test_a_node_whose_gpus_stay_the_same_makes_nothing_old() -> None:
    watch = watch_of(50)
    first = cost(watch)
    changed(watch, replace(node("n7", 8), ready=False))
    assert cost(watch) < first / 5
