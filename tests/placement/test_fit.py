"""The rule of fit against its definition in words, and every faster path against the rule."""

from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.model.gpu import ComputeMode
from deviceplugin.model.request import Request
from deviceplugin.placement.fit import GpuAmount, GpuCapacity, GpuModel, GpuRejection, demand_of, model_of, offers
from deviceplugin.placement.snapshot import GpuView, summarize
from tests.placement.drawn_pods import REQUESTS
from tests.placement.nodes import gpu

MODELS = st.builds(GpuModel, st.just("Test"), st.sampled_from([0, 64, 130, 320]), st.booleans())


@st.composite
def capacities(draw: st.DrawFn) -> GpuCapacity:
    """Often with nothing held, and with just what a request names."""
    model = draw(MODELS)
    cores = draw(st.sampled_from([0, 20, 30, 50, 99, 100, 100]))
    blocks = draw(st.sampled_from([model.blocks, model.blocks, 0, 16, 64]))
    return GpuCapacity(model, cores, min(blocks, model.blocks))


@given(REQUESTS, capacities())
def test_a_gpu_serves_what_is_free_and_is_whole_only_if_unused(request: Request, one: GpuCapacity) -> None:
    _, size, whole_only = one.model
    if request.cores < 100 * request.parts:
        cores, blocks = request.cores // request.parts, request.blocks // request.parts
        fits = one.cores >= cores and one.blocks >= blocks and not whole_only
    else:
        fits = one.cores == 100 and one.blocks == size and size * request.gpus >= request.blocks
    assert (demand_of(request).rejection(one) is None) == fits


@given(REQUESTS, capacities())
def test_the_threshold_of_a_model_and_the_offer_of_a_gpu_say_what_the_rule_says(
    request: Request, one: GpuCapacity
) -> None:
    demand = demand_of(request)
    fits = demand.rejection(one) is None
    needs, found = demand.needs(one.model), offers([one], demand.sharing)
    assert (one.cores >= needs.cores and one.blocks >= needs.blocks) == fits
    assert any(GpuAmount(*each).covers(demand.amount) for each in found) == fits


@given(REQUESTS, st.lists(capacities(), max_size=5))
def test_a_summary_counts_the_gpus_that_serve_a_request(request: Request, gpus: list[GpuCapacity]) -> None:
    modes = [ComputeMode.EXCLUSIVE_PROCESS if one.model.whole_only else ComputeMode.DEFAULT for one in gpus]
    cards = [
        gpu(at, blocks=one.model.blocks, mode=mode) for at, (one, mode) in enumerate(zip(gpus, modes, strict=True))
    ]
    views = [GpuView(card, one.cores, one.blocks) for card, one in zip(cards, gpus, strict=True)]
    demand, found = demand_of(request), summarize(views)
    assert found.fits(demand) == (sum(demand.rejection(one) is None for one in gpus) >= demand.gpus)
    ever = sum(demand.lasting_rejection(one.model) is None for one in gpus)
    assert found.fits_empty(demand) == (ever >= demand.gpus)


def test_the_reason_is_the_lasting_one_first() -> None:
    used, exclusive = GpuModel("Test", 320), model_of(gpu(0, mode=ComputeMode.EXCLUSIVE_PROCESS))
    share, whole = demand_of(Request(30, 40)), demand_of(Request(100, 400))
    assert demand_of(Request(30, 400)).rejection(GpuCapacity(exclusive, 0, 0)) is GpuRejection.SMALL
    assert share.rejection(GpuCapacity(exclusive, 0, 0)) is GpuRejection.EXCLUSIVE
    assert share.rejection(GpuCapacity(used, 20, 20)) is GpuRejection.CORES
    assert share.rejection(GpuCapacity(used, 30, 20)) is GpuRejection.MEMORY
    assert whole.rejection(GpuCapacity(used, 90, 320)) is GpuRejection.SMALL
    assert demand_of(Request(100, 0)).rejection(GpuCapacity(used, 100, 319)) is GpuRejection.IN_USE


def test_a_whole_gpu_is_taken_with_all_of_its_memory() -> None:
    assert demand_of(Request(200, 128)).takes(320) == GpuAmount(100, 320)
    assert demand_of(Request(60, 16, parts=2)).takes(320) == GpuAmount(30, 8)
