"""Profiles of the emulated driver: the node that they describe, and what is said of those with mistakes."""

import json
import re
from collections.abc import Callable
from copy import deepcopy
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.errors import ParseError
from deviceplugin.model.gpu import ComputeMode, Driver
from deviceplugin.model.topology import Level, Link
from deviceplugin.simulate.gpu_profile import Profile, parse_profile
from tests.fenced import fenced
from tests.refusals import refusal

EMULATOR = Path(__file__).parents[2] / "emulator"
SHIPPED = sorted((EMULATOR / "profiles").glob("*.json"))
Document = dict[str, Any]


def document(count: int = 2, **more: object) -> Document:
    model = {"name": "NVIDIA T4", "memory_mib": 15360, "compute_capability": "7.5"}
    gpus: list[Document] = [{"model": "t4"} for _ in range(count)]
    return {"format": 1, "name": "n", "driver": "550.1", "cuda": "12.4", "models": {"t4": model}, "gpus": gpus, **more}


def read(source: Document) -> Profile:
    return parse_profile(json.dumps(source))


def link(source: Document, a: int, b: int) -> Link:
    return read(source).inventory.topology.link(a, b)


def test_a_profile_with_the_least_is_a_node_with_all_defaults() -> None:
    inventory = read(document(2)).inventory
    one, other = inventory.gpus
    assert inventory.driver == Driver("550.1", (12, 4))
    assert [(gpu.index, gpu.minor, gpu.bus_id, gpu.numa) for gpu in (one, other)] == [
        (0, 0, "00000000:01:00.0", None),
        (1, 1, "00000000:04:00.0", None),
    ]
    assert (one.model, one.memory_bytes, one.blocks) == ("NVIDIA T4", (15360 - 120) << 20, 59)
    assert (one.compute_mode, one.mig_enabled) == (ComputeMode.DEFAULT, False)
    assert inventory.topology.link(0, 1) == Link(Level.SYS)


def test_what_a_gpu_says_itself_wins_over_its_model() -> None:
    source = document(1)
    source["gpus"][0] |= {
        "name": "Other", "memory_mib": 1280, "reserved_mib": 256, "minor": 7,
        "uuid": "GPU-own", "bus_id": "0001:ab:1f.0", "numa": 3,
        "compute_mode": "exclusive_process", "mig": True, "mig_capable": True,
    }  # fmt: skip
    (gpu,) = read(source).inventory.gpus
    assert (gpu.model, gpu.blocks, gpu.minor, gpu.uuid) == ("Other", 4, 7, "GPU-own")
    assert (gpu.bus_id, gpu.numa) == ("00000001:AB:1F.0", 3)
    assert (gpu.compute_mode, gpu.mig_enabled) == (ComputeMode.EXCLUSIVE_PROCESS, True)
    assert read(source).inventory.topology.minors == (7,)


def test_a_uuid_that_is_not_given_is_derived_as_the_readme_says() -> None:
    """FNV-1a of `name | bus id` and of `bus id | name`, worked out by hand for the profile "n"."""

    def fnv(text: bytes) -> int:
        value = 14695981039346656037
        for byte in text:
            value = (value ^ byte) * 1099511628211 % 2**64
        return value

    assert fnv(b"a") == 0xAF63DC4C8601EC8C, "the reference vector of FNV-1a"
    high, low = fnv(b"n\x0000000000:01:00.0"), fnv(b"00000000:01:00.0\x00n")
    digits = f"{high:016x}{low:016x}"
    expected = "GPU-" + "-".join([digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]])
    assert read(document(1)).inventory.gpus[0].uuid == expected


def test_a_pair_takes_the_closest_level_of_all_groups_that_hold_both() -> None:
    groups = [
        {"level": "node", "gpus": [0, 1, 2]},
        {"level": "single", "gpus": [1, 0]},
        {"level": "hostbridge", "gpus": [0, 1]},
    ]
    source = document(4, topology={"default": "system", "groups": groups})
    levels = {(a, b): link(source, a, b).level for a, b in combinations(range(4), 2)}
    assert levels == {
        (0, 1): Level.PIX, (0, 2): Level.NODE, (1, 2): Level.NODE,
        (0, 3): Level.SYS, (1, 3): Level.SYS, (2, 3): Level.SYS,
    }  # fmt: skip


def test_levels_have_nvmls_names() -> None:
    names = {
        "internal": Level.INTERNAL,
        "single": Level.PIX,
        "multiple": Level.PXB,
        "hostbridge": Level.PHB,
        "node": Level.NODE,
        "system": Level.SYS,
    }
    assert {name: link(document(2, topology={"default": name}), 0, 1).level for name in names} == names


def test_links_are_by_minor_number_and_groups_by_position() -> None:
    source = document(2, topology={"groups": [{"level": "single", "gpus": [0, 1]}]})
    source["gpus"][0]["minor"] = 5
    assert link(source, 5, 1) == Link(Level.PIX)


DIRECT = {"gpus": [0, 1], "links": 2, "version": "3.0", "via": "direct"}
SWITCHED = {
    "gpus": [0, 1, 2],
    "links": 5,
    "version": "4.0",
    "via": "switch",
    "switches": ["0000:C4:00.0", "0000:c5:00.0"],
}


def test_nvlinks_are_counted_for_each_pair() -> None:
    cases = {
        "direct": ([DIRECT], (2, 0, 0)),
        "a chain": ([DIRECT, {**DIRECT, "gpus": [0, 2], "links": 1}], (2, 1, 0)),
        "all links of both into the same switches": ([SWITCHED], (5, 5, 5)),
        "two fabrics": (
            [{**SWITCHED, "gpus": [0, 1]}, {**SWITCHED, "gpus": [2], "switches": ["0000:D0:00.0"]}],
            (5, 0, 0),
        ),
        "one switch in common": (
            [{**SWITCHED, "gpus": [0, 1]}, {**SWITCHED, "gpus": [2], "switches": ["0000:C5:00.0"]}],
            (5, 2, 2),
        ),
    }
    sources = {name: document(3, nvlink=nvlink) for name, (nvlink, _) in cases.items()}
    counted = {
        name: tuple(link(source, a, b).nvlinks for a, b in combinations(range(3), 2))
        for name, source in sources.items()
    }
    assert counted == {name: counts for name, (_, counts) in cases.items()}


def test_processes_are_counted_for_each_gpu() -> None:
    processes = [{"gpu": 1, "pid": 10, "memory_mib": 5}, {"gpu": 1, "pid": 11, "memory_mib": 5, "type": "mps"}]
    profile = read(document(2, processes=processes))
    assert [profile.processes[gpu.uuid] for gpu in profile.inventory.gpus] == [0, 2]


def test_the_example_of_the_readme_is_read() -> None:
    (example,) = fenced(EMULATOR / "README.md", "jsonc")
    plain = json.loads(re.sub(r"\s//.*", "", example))
    plain["gpus"] = [plain["gpus"][1] for _ in range(4)]  # those of the example are two models of one minor
    profile = read(plain)
    assert len(profile.inventory.gpus) == 4
    assert profile.inventory.topology.link(0, 1) == Link(Level.PXB, nvlinks=12)
    assert sum(profile.processes.values()) == 1


def test_the_shipped_profiles_are_read() -> None:
    assert SHIPPED, "the emulator ships profiles"
    for path in SHIPPED:
        inventory = parse_profile(path.read_bytes(), source=path.name).inventory
        assert inventory.gpus, path
        assert all(gpu.blocks > 0 for gpu in inventory.gpus), path


def drop(key: str) -> Callable[[Document], object]:
    return lambda source: source.pop(key)


def put(key: str, value: object, *, gpu: int | None = None) -> Callable[[Document], object]:
    return lambda source: (source if gpu is None else source["gpus"][gpu]).update({key: value})


def test_an_error_names_the_file_and_the_place() -> None:
    cases = [
        (drop("gpus"), ["`gpus`"]),
        (drop("cuda"), ["`cuda`"]),
        (put("format", 2), ["2", "$.format"]),
        (put("gpu", []), ["unknown field `gpu`"]),
        (put("cuda", "twelve"), ["$.cuda"]),
        (put("gpus", {}), ["$.gpus"]),
        (put("gpus", [{"model": "t4"}] * 65), ["$.gpus"]),
        (put("minor", "first", gpu=1), ["`int | null`", "$.gpus[1].minor"]),
        (put("model", "a100", gpu=1), ["no model 'a100'", "$.gpus[1].model"]),
        (put("minor", -1, gpu=0), ["$.gpus[0].minor"]),
        (put("minor", 0, gpu=1), ["minor 0", "$.gpus[0]", "$.gpus[1]"]),
        (put("bus_id", "0000:01:00.0", gpu=1), ["bus_id 00000000:01:00.0", "$.gpus[1]"]),
        (put("bus_id", "01:00", gpu=1), ["'01:00' is not a PCI address", "$.gpus[1].bus_id"]),
        (put("compute_mode", "shared", gpu=0), ["'shared'", "$.gpus[0].compute_mode"]),
        (put("memory_mib", 0, gpu=0), ["$.gpus[0].memory_mib"]),
        (put("reserved_mib", 15360, gpu=1), ["reserved_mib (15360) leaves nothing", "$.gpus[1]"]),
        (put("mig", "yes", gpu=0), ["$.gpus[0].mig"]),
        (put("models", {"t4": {"name": "T4"}}), ["memory_mib", "$.gpus[0]"]),
        (put("topology", {"default": "near"}), ["'near'", "$.topology.default"]),
        (
            put("topology", {"groups": [{"level": "node", "gpus": [0, 2]}]}),
            ["no GPU 2", "$.topology.groups[0].gpus[1]"],
        ),
        (put("topology", {"groups": [{"level": "node", "gpus": [1, 1]}]}), ["twice", "$.topology.groups[0].gpus[1]"]),
        (put("nvlink", [{**DIRECT, "gpus": [0, 5]}]), ["no GPU 5", "$.nvlink[0].gpus[1]"]),
        (put("nvlink", [{**DIRECT, "links": 0}]), ["$.nvlink[0].links"]),
        (put("nvlink", [{**DIRECT, "switches": ["0000:C4:00.0"]}]), ["switches", "$.nvlink[0]"]),
        (put("nvlink", [{**DIRECT, "via": "switch"}]), ["switches", "$.nvlink[0]"]),
        (put("processes", [{"gpu": 2, "pid": 1, "memory_mib": 1}]), ["no GPU 2", "$.processes[0].gpu"]),
    ]
    wrong = []
    for change, words in cases:
        source = document(2)
        change(source)
        said = refusal(ParseError, parse_profile, json.dumps(source), source="box.json")
        if not (said.startswith("box.json: ") and all(word in said for word in words) and "\n" not in said):
            wrong.append((words, said))
    assert wrong == []


def test_what_is_no_json_document_is_a_parse_error() -> None:
    texts: list[bytes | str] = [
        b"",
        b"{",
        b"[1]",
        b"\xff\xfe",
        b'{"format": 1} x',
        b"[" * 100_000,
        b'"\xed\xa0\x80"',
        "\ud800",
    ]
    said = [(text[:20], refusal(ParseError, parse_profile, text)) for text in texts]
    assert [each for each in said if not each[1].startswith("profile: ")] == []


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def test_a_key_that_is_not_printable_does_not_break_the_line() -> None:
    with pytest.raises(ParseError, match=r"unknown field `a b") as caught:
        read(document(1, **{"a\nb" * 1000: 1}))
    assert len(caught.value.message) < 350
    assert caught.value.message.isprintable()


@given(data=st.data())
def test_a_profile_with_anything_anywhere_is_read_or_a_parse_error_of_one_line(data: st.DataObject) -> None:
    source = document(
        3,
        topology={"default": "node", "groups": [{"level": "single", "gpus": [0, 1]}]},
        nvlink=deepcopy([DIRECT, SWITCHED]),
        processes=[{"gpu": 1, "pid": 10, "memory_mib": 5}],
    )
    place: Any = source
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(place[key], dict | list) or not place[key] or data.draw(st.booleans()):
            break
        place = place[key]
    place[key] = data.draw(VALUES)
    said = refusal(ParseError, parse_profile, json.dumps(source))
    assert said.isprintable()


@given(text=st.binary(max_size=40) | st.text(max_size=40))
def test_any_bytes_are_a_parse_error(text: bytes | str) -> None:
    assert refusal(ParseError, parse_profile, text)
