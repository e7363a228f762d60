"""Which IDs the agent asks kubelet to prefer."""

from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.kubelet.devices import catalog, choose_ids, quotas
from deviceplugin.model.gpu import device_id, gpu_keys
from deviceplugin.model.units import Resource
from tests.kubelet.makers import grant, inventory, pod

NODE = catalog(inventory(3))
KEYS = [NODE.keys[gpu.uuid] for gpu in NODE.inventory.gpus]


def cores(minor: int, *numbers: int) -> list[str]:
    return [device_id(Resource.CORE, KEYS[minor], number) for number in numbers]


def test_the_ids_come_from_the_gpu_that_was_placed() -> None:
    available = cores(0, *range(100)) + cores(1, *range(50, 100))
    assert choose_ids(available, [], 3, {KEYS[1]: 3}) == tuple(cores(1, 50, 51, 52))


def test_ids_that_must_be_included_count_towards_their_gpu() -> None:
    chosen = choose_ids(cores(0, 5) + cores(1, 1, 2, 3), cores(1, 9), 3, {KEYS[1]: 3})
    assert chosen == (*cores(1, 9), *cores(1, 1, 2))


def test_what_the_gpu_lacks_comes_from_the_fullest_offer() -> None:
    chosen = choose_ids(cores(0, 1) + cores(1, 1) + cores(2, 1, 2, 3), [], 3, {KEYS[0]: 3})
    assert chosen == (*cores(0, 1), *cores(2, 1, 2))


def test_cores_and_blocks_of_a_set_are_spread_over_its_gpus() -> None:
    container = pod("p", ("c", 200, 5)).containers[0]
    held = grant(container, (0, 100, 64), (2, 100, 64)).allocation
    assert quotas(held, Resource.CORE, NODE.keys) == {KEYS[0]: 100, KEYS[2]: 100}
    assert quotas(held, Resource.MEMORY, NODE.keys) == {KEYS[0]: 3, KEYS[2]: 2}


def test_a_gpu_that_went_away_has_no_quota() -> None:
    container = pod("p", ("c", 20, 5)).containers[0]
    held = grant(container, (7, 20, 5)).allocation
    assert quotas(held, Resource.CORE, gpu_keys(gpu.uuid for gpu in NODE.inventory.gpus)) == {}


ALL = sorted(NODE.issued[Resource.CORE])


@given(st.data())
def test_kubelet_gets_exactly_what_it_asked_for_out_of_what_it_offered(data: st.DataObject) -> None:
    available = data.draw(st.lists(st.sampled_from(ALL), unique=True, min_size=1, max_size=200))
    must = data.draw(st.lists(st.sampled_from(available), unique=True, max_size=len(available)))
    size = data.draw(st.integers(len(must), len(available)))
    wanted = {key: data.draw(st.integers(0, 100)) for key in KEYS}
    chosen = choose_ids(available, must, size, wanted)
    assert len(chosen) == len(set(chosen)) == size
    assert set(must) <= set(chosen) <= set(available)


def test_ids_of_a_plugin_before_us_are_no_reason_to_fail() -> None:
    assert set(choose_ids(["old-1", "old-2", *cores(0, 1)], [], 2, {KEYS[0]: 2})) >= set(cores(0, 1))
