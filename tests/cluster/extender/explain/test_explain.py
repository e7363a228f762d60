"""Why a pod waits, and what would have to change."""

from deviceplugin.cluster.extender.explain.verdicts import Verdicts
from deviceplugin.cluster.extender.extender import Extender
from deviceplugin.model.allocation import ContainerRole
from deviceplugin.model.cluster_view import Explanation
from deviceplugin.model.pod import ClusterPod
from tests.cluster.extender.api import Fate, MemoryApi
from tests.cluster.extender.conftest import Clock
from tests.cluster.extender.makers import NAMES, allocated, ask, bound, node, on_gpu, order, pod, running


async def explained(extender: Extender, one: ClusterPod) -> Explanation:
    found = await extender.explain("d", one.pod.ref.name)
    assert found is not None
    return found


async def test_a_pod_that_is_not_there_has_no_explanation(extender: Extender) -> None:
    assert await extender.explain("d", "p") is None


async def test_every_node_and_gpu_has_its_reason_and_what_would_have_to_change(extender: Extender) -> None:
    extender.put_node(node("a", 3, ill=[2]))
    extender.put_node(node("small", 1, blocks=4))
    extender.put_node(node("broken", text="{"))
    extender.put_pod(running("a", 0, 70, 8))
    extender.put_pod(running("a", 1, 60, 60))
    waits = pod("p", cores=50, blocks=8)
    assert extender.filter(ask(waits, "a", "small", "broken")).names == ()
    found = await explained(extender, waits)
    assert found.sentence == "the pod fits on none of the 3 nodes that kube-scheduler asked about"
    assert found.asked == ("container main: 50 cores and 2 GiB of one GPU",)
    assert [each.node for each in found.nodes] == ["a", "broken", "small"] or found.nodes[0].node == "a"
    assert found.main_reason == "insufficient vcuda-core on any one GPU (1 of 3 nodes)", "it may go away; others do not"
    first = found.nodes[0]
    assert [gpu.nearest for gpu in first.gpus] == [False, True, False]
    assert first.fix == "10 more cores and 1 GiB more must become free on GPU 1"
    assert [gpu.against for gpu in first.gpus] == ["only 30 cores free", "only 40 cores free", "unavailable: Xid 79"]
    assert first.gpus[0].holders == ("d/on-a-0: 70 cores, 2 GiB (bound)",)
    others = {each.node: each.fix for each in found.nodes[1:]}
    assert others["small"] == "request less memory, allow another GPU model, or add larger GPUs"
    assert "vcuda-inventory" in others["broken"]


async def test_a_pod_that_fits_now_is_reported_so(extender: Extender) -> None:
    extender.put_node(node("a", 1))
    other = running("a", 0, 100, 64)
    extender.put_pod(other)
    waits = pod("p")
    extender.filter(ask(waits, "a"))
    extender.drop_pod(other.uid)
    assert (await explained(extender, waits)).nodes[0].fix == "nothing: the pod fits now and will be retried"


async def test_whole_gpus_that_are_missing_are_named(extender: Extender) -> None:
    extender.put_node(node("a", 2))
    extender.put_pod(running("a", 0, 20, 8))
    extender.put_pod(running("a", 1, 90, 8))
    waits = pod("p", cores=100, blocks=0)
    extender.filter(ask(waits, "a"))
    change = (await explained(extender, waits)).nodes[0].fix
    assert change == "20 more cores and 2 GiB more must become free on GPU 0"


async def test_containers_that_only_fit_alone_have_their_own_reason(extender: Extender) -> None:
    extender.put_node(node("a", 1))
    extender.put_pod(running("a", 0, 30, 8))
    waits = pod("p", cores=40, more=[("side", ContainerRole.APP, 40, 8)])
    extender.filter(ask(waits, "a"))
    assert (await explained(extender, waits)).nodes[0].fix == "room for all containers of the pod together"


async def test_a_chosen_pod_says_where(extender: Extender, clock: Clock) -> None:
    extender.put_node(node("a", 1))
    one = pod("p")
    extender.filter(ask(one, "a"))
    assert (await explained(extender, one)).node == "a"
    said = await explained(extender, one)
    assert said.sentence == "node a was chosen; its GPUs are reserved, and kube-scheduler has not bound the pod yet"
    assert said.asked[-1] == "container main: 50 cores and 2 GiB of GPU 0 (GPU-a-0)"
    clock.now += 61
    extender.expire()
    assert "has not bound the pod in time" in (await explained(extender, one)).sentence
    extender.put_pod(bound(one, "a"))
    assert (await explained(extender, one)).sentence == "the pod is bound to node a"


async def test_only_the_nearest_of_many_nodes_are_shown_in_full(extender: Extender) -> None:
    names = [f"n{at:02}" for at in range(30)]
    for at, name in enumerate(names):
        extender.put_node(node(name, 1))
        extender.put_pod(running(name, 0, 99 - at, 8))
    waits = pod("p", cores=100, blocks=0)
    extender.filter(ask(waits, *names))
    found = await explained(extender, waits)
    assert (len(found.nodes), found.left_out) == (20, 10)
    assert found.nodes[0].node == "n29"
    assert found.reasons == {"insufficient whole GPUs": 30}


async def test_where_no_end_of_a_pod_helps_the_node_that_lacks_least_comes_first(extender: Extender) -> None:
    gib = 4
    extender.put_node(node("a-small", 8, blocks=15 * gib))
    extender.put_node(node("b-large", 8, blocks=80 * gib))
    extender.put_node(node("c-ill", 1, blocks=141 * gib, ill=[0]))
    extender.put_node(node("d-one", 1, blocks=80 * gib))
    extender.put_node(node("e-unread", text="{"))
    for blocks, gpus, order_ in (
        (100 * gib, 1, ["c-ill", "b-large", "d-one", "a-small", "e-unread"]),
        (16 * gib, 9, ["b-large", "a-small", "d-one", "c-ill", "e-unread"]),
    ):
        waits = pod(cores=100 * gpus, blocks=blocks * gpus)
        extender.filter(ask(waits, "a-small", "b-large", "c-ill", "d-one", "e-unread"))
        assert [each.node for each in (await explained(extender, waits)).nodes] == order_


async def test_a_gpu_that_the_pod_excludes_is_farther_than_a_smaller_one(extender: Extender) -> None:
    extender.put_node(node("a-other", 1, blocks=640, model="NVIDIA A100"))
    extender.put_node(node("b-wanted", 1, blocks=320, model="NVIDIA H100"))
    waits = pod(cores=100, blocks=400, annotations={NAMES.use_models: "H100"})
    extender.filter(ask(waits, "a-other", "b-wanted"))
    assert [each.node for each in (await explained(extender, waits)).nodes] == ["b-wanted", "a-other"]


def test_the_oldest_verdicts_are_forgotten_first() -> None:
    verdicts = Verdicts(most=2)
    pods = [pod() for _ in range(3)]
    for each in pods:
        verdicts.record(each, None, {})
    assert [verdicts.of(each.uid) is not None for each in pods] == [False, True, True]
    for each in pods:
        verdicts.forget(each.uid)
    assert not verdicts.has_unplaced_pods


async def test_a_pod_whose_binding_is_on_its_way_says_so() -> None:
    for fate, said in ((Fate.WORKS, "the pod is being bound"), (Fate.LATE, "its Binding got no answer")):
        api = MemoryApi(fates=[fate], read_fates=[Fate.LATE])
        extender = Extender(api)
        extender.put_node(node("a", 1))
        one = api.put(pod("p"))
        extender.filter(ask(one, "a"))
        await extender.bind(order(one, "a"))
        assert said in (await explained(extender, one)).sentence


async def test_an_inventory_of_another_version_says_what_is_wrong_and_what_to_do(extender: Extender) -> None:
    extender.put_node(node("a", text='{"version":99}'))
    waits = pod("p")
    extender.filter(ask(waits, "a"))
    found = await explained(extender, waits)
    assert found.sentence == "the pod does not fit on the one node that kube-scheduler asked about"
    change = found.nodes[0].fix
    assert "vcuda-inventory" in change
    assert change.endswith("the node's agent and the scheduler must have versions that understand each other")


async def test_a_bound_pod_says_where_it_is_and_what_is_wrong_with_its_annotation(extender: Extender) -> None:
    extender.put_node(node("a", 1))
    for name, text, said in (
        ("good", None, "the pod is bound to node a"),
        ("bad", "{", "the pod is bound to node a; annotation vcuda-allocation cannot be read"),
    ):
        one = pod(name)
        shares = allocated(one, {"main": on_gpu("a", 0, 50, 8)}) if text is None else {NAMES.allocation: text}
        extender.put_pod(bound(one, "a", shares))
        assert (await explained(extender, one)).sentence.startswith(said)
        assert await extender.explain("d", name, leads=False) == await explained(extender, one)
