"""Memory in MiB becomes blocks to be placed by and a limit of exactly that."""

from itertools import product

from deviceplugin.cluster.webhook.mutate import mutate
from deviceplugin.cluster.webhook.pod_json import Json
from deviceplugin.cluster.webhook.resources import GpuKind, KnownGpus
from deviceplugin.cluster.webhook.validate import validate
from deviceplugin.errors import VcudaError
from tests.cluster.webhook.makers import (
    A100S,
    CORE,
    GPUCORES,
    GPUMEM,
    HAMI,
    MEMORY,
    MEMORY_MIB,
    SETTINGS,
    asked,
    container,
    gpu_pod,
    mutated,
    node_of,
    pod,
)
from tests.refusals import refusal

GPUS, LIMIT = "tencent.com/vcuda-gpus", "tencent.com/vcuda-memory-limit"
A40S = KnownGpus(179, most=8, kinds=(GpuKind("NVIDIA A40", 46068),))
CARDS = [
    ("NVIDIA H100 80GB HBM3", 81559, 318),
    ("NVIDIA A40", 46068, 179),
    ("Tesla V100-SXM2-32GB", 32510, 126),
    ("NVIDIA A10", 23028, 89),
    ("Tesla P100-PCIE-16GB", 16276, 63),
]
"""Models, MiB and whole blocks."""


def test_mib_are_rounded_up_to_blocks_and_are_the_limit() -> None:
    cases: list[tuple[dict[str, str], dict[str, str], dict[str, str], dict[str, str]]] = [
        ({CORE: "30", MEMORY_MIB: "5000"}, {}, {CORE: "30", MEMORY: "20"}, {LIMIT: "main=5000"}),
        ({CORE: "30", MEMORY_MIB: "5Ki"}, {}, {CORE: "30", MEMORY: "20"}, {}),
        ({MEMORY_MIB: "300"}, {}, {CORE: "10", MEMORY: "2"}, {LIMIT: "main=300"}),
        ({CORE: "60", MEMORY_MIB: "10001"}, {GPUS: "2"}, {CORE: "60", MEMORY: "40"}, {GPUS: "2", LIMIT: "main=5001"}),
        ({CORE: "30", MEMORY_MIB: "5000"}, {LIMIT: "4000"}, {CORE: "30", MEMORY: "20"}, {LIMIT: "4000"}),
        (
            {CORE: "30", MEMORY_MIB: "5000"},
            {LIMIT: "other=9"},
            {CORE: "30", MEMORY: "20"},
            {LIMIT: "other=9,main=5000"},
        ),
        ({CORE: "30", MEMORY_MIB: "0"}, {}, {CORE: "30", MEMORY: "48"}, {}),
    ]
    changed = [mutated(gpu_pod(limits, dict(given))) for limits, given, *_ in cases]
    assert [(asked(each), each["metadata"]["annotations"]) for each in changed] == [each[2:] for each in cases]
    assert [mutated(each) for each in changed] == changed, "the webhook may be called again"


def test_all_of_the_largest_card_is_all_of_it() -> None:
    """An A40 has 46,068 MiB, which are 179 blocks and 244 MiB."""
    changed = mutate(gpu_pod({CORE: "50", MEMORY_MIB: "46068"}), SETTINGS, A40S)
    assert asked(changed.pod) == {CORE: "50", MEMORY: "179"}
    assert (changed.pod["metadata"].get("annotations"), validate(changed.pod, SETTINGS, A40S)) == (None, ())


def _a_node_of_each(times: int) -> KnownGpus:
    return KnownGpus.of(node_of((model, mib)) for model, mib, _ in CARDS for _ in range(times))


def _made_of(resources: dict[str, str], written: dict[str, str], known: KnownGpus) -> tuple[dict[str, str], list[str]]:
    """What the pod asks for, and the warnings."""
    changed = mutate(gpu_pod(resources, dict(written)), HAMI, known)
    return asked(changed.pod), [*changed.warnings, *validate(changed.pod, HAMI, known)]


def test_all_of_each_card_fits_it_among_cards_of_other_models() -> None:
    """D6: HAMi shows the MiB of each card in an annotation of its node, and its users copy them."""
    for nodes, (model, mib, blocks) in product((1, 3), CARDS):
        known = _a_node_of_each(nodes)
        for (cores, memory), wanted, written in product(
            [(GPUCORES, GPUMEM), (CORE, MEMORY_MIB)],  # as HAMi writes it, and as vcuda does
            (mib, blocks * 256 + 1),
            (
                {},
                {"nvidia.com/use-gputype": model},
                {"tencent.com/vcuda-use-models": model.upper()},
                {"nvidia.com/use-gpuuuid": f"GPU-{model}-{mib}-0"},
            ),
        ):
            answer = _made_of({cores: "50", memory: str(wanted)}, written, known)
            assert answer == ({CORE: "50", MEMORY: str(blocks)}, []), (nodes, model, memory, wanted, written)


def test_a_mib_more_than_a_card_has_is_rounded_up_for_a_larger_one() -> None:
    known = _a_node_of_each(2)
    for model, mib, blocks in CARDS[1:]:
        resources = {GPUCORES: "50", GPUMEM: str(mib + 1)}
        assert _made_of(resources, {}, known) == ({CORE: "50", MEMORY: str(blocks + 1)}, []), model
        _, (warning,) = _made_of(resources, {"nvidia.com/use-gputype": model}, known)
        assert f"none that the pod accepts has more than {blocks} blocks" in warning, model


def test_a_card_that_the_pod_does_not_accept_changes_nothing() -> None:
    known = KnownGpus.of([node_of(("NVIDIA A40", 46068)), node_of(("NVIDIA A10", 23028))])
    for written in [{"nvidia.com/use-gputype": "A40"}, {"nvidia.com/nouse-gpuuuid": "GPU-NVIDIA A10-23028-0"}]:
        made = _made_of({GPUCORES: "50", GPUMEM: "23028"}, written, known)
        assert made == ({CORE: "50", MEMORY: "90"}, []), written


def test_one_node_that_reports_a_small_card_takes_no_memory_from_pods() -> None:
    """Security 15: a kubelet may annotate its own node."""
    small, large = ("NVIDIA A40", 5000), ("NVIDIA A40", 1 << 20)
    for said, written in product(((small,), (small, large)), ({}, {"nvidia.com/use-gputype": "A40"})):
        known = KnownGpus.of([*[node_of(("NVIDIA A40", 46068))] * 2, node_of(*said)])
        made = [_made_of({GPUCORES: "50", GPUMEM: mib}, written, known)[0] for mib in ("5000", "46068")]
        assert made == [{CORE: "50", MEMORY: "20"}, {CORE: "50", MEMORY: "179"}], (said, written)


def test_while_no_gpu_is_known_mib_are_rounded_up_with_a_warning() -> None:
    for cores, memory in [(GPUCORES, GPUMEM), (CORE, MEMORY_MIB)]:
        made, (warning,) = _made_of({cores: "50", memory: "46068"}, {}, KnownGpus())
        assert made == {CORE: "50", MEMORY: "180"}
        assert "container main asks for 46068 MiB and no GPU is known yet; they become 180 blocks (45 GiB)" in warning
        assert _made_of({cores: "50", memory: "4096"}, {}, KnownGpus()) == ({CORE: "50", MEMORY: "16"}, [])


def test_each_container_has_its_own_limit() -> None:
    one, two = container("one", {CORE: "10", MEMORY_MIB: "700"}), container("two", {CORE: "10", MEMORY: "3"})
    changed = mutated(pod(one, two, initContainers=[container("first", {CORE: "10", MEMORY_MIB: "100"})]))
    assert changed["metadata"]["annotations"] == {LIMIT: "first=100,one=700"}
    assert validate(changed, SETTINGS, A100S) == ()


def test_what_cannot_be_is_refused_with_what_to_write() -> None:
    cases: list[tuple[Json, str]] = [
        ({"limits": {MEMORY_MIB: "5000", MEMORY: "20"}}, f"asks for {MEMORY} and for {MEMORY_MIB}; use one of the two"),
        ({"limits": {MEMORY_MIB: "5000"}, "requests": {MEMORY_MIB: "4000"}}, "differs between requests and limits"),
        ({"limits": {MEMORY_MIB: "-1"}}, "-1 is not possible; write MiB, 4096 for 4 GiB"),
        ({"limits": {MEMORY_MIB: "5Gi"}}, "5368709120 is not possible; write MiB, 4096 for 4 GiB"),
        ({"limits": {MEMORY_MIB: "much"}}, f"{MEMORY_MIB}: "),
    ]
    pods = [(pod({"name": "main", "image": "busybox", "resources": each}), sentence) for each, sentence in cases]
    for settings in (SETTINGS, HAMI):
        said = [(sentence, refusal(VcudaError, mutate, given, settings, A100S)) for given, sentence in pods]
        assert [each for each in said if each[0] not in each[1]] == []


def test_a_limit_without_effect_is_warned_about() -> None:
    shared, whole = (mutated(gpu_pod(each, {LIMIT: "6000"})) for each in ({CORE: "30", MEMORY: "20"}, {CORE: "200"}))
    (of_share,), (of_whole,) = validate(shared, SETTINGS, A100S), validate(whole, SETTINGS, A100S)
    assert "6000 MiB of each GPU, but it asks for 20 blocks (5 GiB); that is its" in of_share
    assert "has whole GPUs and all their memory; annotation" in of_whole


def test_a_wrong_limit_is_refused() -> None:
    sentences = {"5Gi": "vcuda-memory-limit holds '5Gi'; write the MiB", "x=1": "names container x"}
    pods = {limit: mutated(gpu_pod({CORE: "30", MEMORY: "20"}, {LIMIT: limit})) for limit in sentences}
    said = [(sentences[limit], refusal(VcudaError, validate, each, SETTINGS, A100S)) for limit, each in pods.items()]
    assert [each for each in said if each[0] not in each[1]] == []
