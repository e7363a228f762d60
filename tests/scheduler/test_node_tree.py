"""The scheduler's picture of a node is the agent's."""

from deviceplugin.cluster.extender.extender import Extender
from deviceplugin.cluster.view.rows import Shown
from deviceplugin.model.cluster_view import NamesShown
from deviceplugin.scheduler.node_tree import tree_of
from tests.cluster.extender.api import MemoryApi
from tests.cluster.extender.makers import allocated, ask, bound, node, on_gpu, pod


def drawn(names: NamesShown) -> tuple[str, str]:
    """The picture, and the UID of the pod that runs."""
    extender = Extender(MemoryApi())
    extender.put_node(node("a", 3, ill=[2]))
    runs = pod("runs", cores=30, blocks=8)
    extender.put_pod(bound(runs, "a", allocated(runs, {"main": on_gpu("a", 0, 30, 8)})))
    waits = pod("chosen", cores=100, blocks=0)
    extender.put_pod(waits)
    extender.filter(ask(waits, "a"))
    return tree_of(extender.cache.nodes["a"], Shown(names)), runs.uid


def test_it_has_every_gpu_with_who_holds_it() -> None:
    text, _ = drawn(NamesShown.ALL)
    lines = text.splitlines()
    assert lines[0].startswith("a · 3 × Tesla T4 · driver 550.1 · CUDA 12.4")
    assert sum("GPU " in line for line in lines[2:]) == 3
    assert "d/runs/main" in text
    assert "d/chosen/main (not proved yet)" in text
    assert "unhealthy: Xid 79" in text


def test_without_the_right_it_has_no_name() -> None:
    text, uid = drawn(NamesShown.NONE)
    assert "runs" not in text
    assert "chosen" not in text
    assert uid in text
