"""A Binding never makes a pod larger than the API server takes: it is not validated, and nothing could follow it."""

import pytest

from deviceplugin.cluster.extender.extender import Extender
from deviceplugin.model.pod import ClusterPod
from deviceplugin.model.pod_request import LARGEST, size_with
from deviceplugin.structs import replace
from sandbox.apiserver import Store
from sandbox.apiserver import container as json_container
from sandbox.apiserver import pod as json_pod
from tests.cluster.extender.api import MemoryApi
from tests.cluster.extender.makers import NAMES, ask, ask_room, bound, order, pod, running

SENTENCE = "bytes of annotations, its GPUs need up to "


def full(found: ClusterPod, total: int) -> ClusterPod:
    return replace(found, pod=replace(found.pod, annotation_bytes=total))


@pytest.mark.parametrize("left", [0, 100, 1000, 1400, 2000, 20_000])
async def test_a_bound_pod_can_still_be_changed(busy: Extender, api: MemoryApi, left: int) -> None:
    """By kubelet, which writes that it runs; or the pod is refused with a sentence."""
    made = full(pod("p", cores=10, blocks=4), LARGEST - left)
    busy.put_pod(made)
    api.pods = {made.uid: made}
    answer = busy.filter(ask(made, "a"))
    if not answer.names:
        assert left < 2000
        assert SENTENCE in answer.unresolvable["a"]
        assert await busy.bind(order(made, "a")) == answer.unresolvable["a"]
        assert api.bindings == 0
        return
    assert left >= 1000
    assert await busy.bind(order(made, "a")) == ""
    written = dict(api.pods[made.uid].pod.annotations)
    assert size_with(LARGEST - left, {}, written) <= LARGEST
    store = Store()
    document = json_pod("p", json_container(cores=10, blocks=4), annotations={"own": "x" * (LARGEST - left - 3)})
    store.create("pods", document)
    store.bind("p", "a", namespace="default", meta={"annotations": written})
    assert store.set_status("p", {"phase": "Running"})["status"]["phase"] == "Running"
    store.patch("pods", "p", {"metadata": {"annotations": {NAMES.gpu_assigned: "true"}}}, namespace="default")


def grown_since_filter(busy: Extender, api: MemoryApi, size: int) -> ClusterPod:
    made = pod("p", cores=10, blocks=4)
    busy.put_pod(made)
    api.pods = {made.uid: made}
    assert busy.filter(ask(made, "a")).names == ("a",)
    later = full(made, size)
    busy.put_pod(replace(later, pod=replace(later.pod, resource_version="2")))
    return made


async def test_a_pod_that_grew_since_filter_was_asked_loses_the_decision_first(busy: Extender, api: MemoryApi) -> None:
    made = grown_since_filter(busy, api, LARGEST - 500)
    assert await busy.bind(order(made, "a")) == ""
    assert NAMES.decision not in api.pods[made.uid].pod.annotations
    assert NAMES.allocation in api.pods[made.uid].pod.annotations


async def test_a_pod_that_grew_to_the_limit_is_not_bound(busy: Extender, api: MemoryApi) -> None:
    told: list[str] = []
    busy._binder._unbound = lambda _pod, why: told.append(why)
    made = grown_since_filter(busy, api, LARGEST - 40)
    said = await busy.bind(order(made, "a"))
    assert said.endswith(f"Kubernetes takes {LARGEST}; make its annotations smaller")
    assert (told, api.bindings, list(busy.cache.holds(made.uid))) == ([said], 0, [])


async def test_nobody_is_evicted_for_a_pod_that_has_no_room_for_its_gpus(busy: Extender) -> None:
    victim = running("a", 0, 100, 64)
    busy.put_pod(bound(victim, "a"))
    waits = full(pod("p", cores=200, blocks=0, priority=9), LARGEST - 10)
    assert (await busy.preempt(ask_room(waits, {"a": [victim]}))) == {}


async def test_explain_says_it(busy: Extender) -> None:
    waits = full(pod("p", cores=10, blocks=4), LARGEST - 10)
    busy.put_pod(waits)
    for asked in (False, True):
        if asked:
            busy.filter(ask(waits, "a"))
        found = await busy.explain("d", "p")
        assert found is not None
        assert SENTENCE in str(found)
