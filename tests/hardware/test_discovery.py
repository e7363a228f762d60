"""What a discovery makes of GPUs that did not answer, given what is known of them."""

from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.errors import NvmlCallError
from deviceplugin.hardware.discovery import VANISHED, absent_gpus
from deviceplugin.model.gpu import Gpu
from deviceplugin.structs import replace
from tests.hardware.makers import gpu

LOST = NvmlCallError("nvmlDeviceGetHandleByIndex failed for GPU 1", code=15, said="GPU is lost")


def test_a_gpu_that_does_not_answer_keeps_its_place_and_says_why() -> None:
    missing, notes = absent_gpus([gpu(0)], {1: LOST}, [gpu(0), gpu(1)])
    assert (missing, notes) == ({gpu(1): "GPU is lost"}, ())


def test_a_gpu_that_is_no_longer_counted_keeps_its_place_too() -> None:
    assert absent_gpus([gpu(0)], {}, [gpu(0), gpu(1)]) == ({gpu(1): VANISHED}, ())
    assert absent_gpus([], {}, [gpu(0), gpu(1)]) == ({gpu(0): VANISHED, gpu(1): VANISHED}, ())


def test_a_gpu_that_was_never_seen_well_is_left_out_with_a_note() -> None:
    missing, notes = absent_gpus([gpu(0)], {1: LOST}, [gpu(0)])
    assert (missing, notes) == ({}, ("left out: nvmlDeviceGetHandleByIndex failed for GPU 1",))


def test_a_card_that_was_replaced_is_forgotten() -> None:
    same_slot = gpu(1, uuid="GPU-new")
    missing, notes = absent_gpus([gpu(0), same_slot], {}, [gpu(0), gpu(1)])
    assert (missing, notes) == ({}, ("forgot GPU-1: another GPU has its place now",))
    same_node = gpu(5, minor=1, uuid="GPU-new")
    assert absent_gpus([gpu(0), same_node], {}, [gpu(0), gpu(1)])[0] == {}


def test_what_is_remembered_of_another_machine_is_forgotten() -> None:
    here = [gpu(index, uuid=f"GPU-here-{index}", bus_id=f"0000000A:{index:02X}:00.0", minor=index) for index in (8, 9)]
    missing, notes = absent_gpus(here, {}, [gpu(0)])
    assert (missing, notes) == ({}, ("forgot GPU-0: no GPU that was known is here any more",))


_GPUS = st.lists(st.integers(0, 7), unique=True, max_size=8)


@given(present=_GPUS, known=_GPUS, silent=_GPUS, shift=st.integers(0, 2))
def test_whatever_is_missing_places_stay_unique_and_nothing_known_is_lost_silently(
    present: list[int], known: list[int], silent: list[int], shift: int
) -> None:
    here = [replace(gpu(index), minor=index + shift) for index in present]
    before = [gpu(index) for index in known]
    missing, notes = absent_gpus(here, dict.fromkeys(set(silent) - set(present), LOST), before)
    together: list[Gpu] = [*here, *missing]
    for place in ("uuid", "minor", "bus_id"):
        assert len({getattr(one, place) for one in together}) == len(together)
    forgotten = {one.uuid for one in before} - {one.uuid for one in together}
    noted = " ".join(notes)
    assert all(uuid in noted for uuid in forgotten)
