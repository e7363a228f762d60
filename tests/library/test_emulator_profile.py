"""Profiles: what is left out is filled in as documented, and every mistake is reported in one line with its place."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.errors import ParseError
from sandbox.emulator_profile import compile_profile
from tests.examples import examples
from tests.library.machine import PROFILES, REPOSITORY, Machine, Profile, shipped
from tests.refusals import refusal

pytestmark = pytest.mark.thorough

Json = Any  # a part of a profile, right or wrong

_MODEL: dict[str, Json] = {"name": "Test", "memory_mib": 1024, "compute_capability": "8.0"}


def _profile(**changes: Json) -> Profile:
    return {
        "format": 1,
        "name": "t",
        "driver": "1.2",
        "cuda": "12.4",
        "models": {"m": dict(_MODEL)},
        "gpus": [{"model": "m"}, {"model": "m"}],
    } | changes


def _fnv(text: str) -> int:
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return value


def test_what_is_left_out_is_filled_in_as_the_readme_says(machine: Machine) -> None:
    machine.describe(_profile())
    gpus = machine.show()["gpus"]
    assert [gpu["minor"] for gpu in gpus] == [0, 1]
    assert [gpu["bus_id"] for gpu in gpus] == ["00000000:01:00.0", "00000000:04:00.0"]
    assert [gpu["numa"] for gpu in gpus] == [-1, -1]
    assert [gpu["reserved_mib"] for gpu in gpus] == [8, 8]
    for gpu in gpus:
        digits = f"{_fnv('t' + chr(0) + gpu['bus_id']):016x}{_fnv(gpu['bus_id'] + chr(0) + 't'):016x}"
        parts = re.fullmatch(r"(.{8})(.{4})(.{4})(.{4})(.{12})", digits)
        assert parts is not None
        assert gpu["uuid"] == "GPU-" + "-".join(parts.groups())
    nvml = machine.nvml()
    device = nvml.devices()[0]
    assert nvml.call("nvmlDeviceGetSerial", device) == str(1320000000000 + _fnv(f"t\0{gpus[0]['bus_id']}") % 10**10)
    assert nvml.call("nvmlDeviceGetBAR1MemoryInfo", device)["bar1Total"] == 1024 << 20


def test_a_gpu_overrides_its_model(machine: Machine) -> None:
    machine.describe(_profile(gpus=[{"memory_mib": 2048, "model": "m"}, {"model": "m"}]))
    assert [gpu["memory_mib"] for gpu in machine.show()["gpus"]] == [2048, 1024]


def test_sixty_four_gpus_work_and_one_more_does_not(machine: Machine) -> None:
    nvml = machine.nvml(_profile(gpus=[{"model": "m"}] * 64))
    assert len(nvml.devices()) == 64
    assert "`array` of length <= 64 - at `$.gpus`" in _refused(_profile(gpus=[{"model": "m"}] * 65))


def test_a_machine_may_have_no_gpu(machine: Machine) -> None:
    machine.describe(_profile(gpus=[]))
    assert machine.nvml().devices() == []


def _gpu(**fields: Json) -> Profile:
    return _profile(gpus=[{"model": "m"} | fields])


def _model(**fields: Json) -> Profile:
    return _profile(models={"m": _MODEL | fields})


def _joined(**fields: Json) -> Profile:
    return _profile(nvlink=[{"gpus": [0, 1], "links": 2, "version": "3.0", "via": "direct"} | fields])


def _refused(profile: Profile) -> str:
    return refusal(ParseError, compile_profile, json.dumps(profile), source="box.json")


def test_each_mistake_is_reported_in_one_line() -> None:
    mistakes = [
        (_profile(format=2), "- at `$.format`"),
        (_profile(cuda="12"), "- at `$.cuda`"),
        (_profile(driver="1" * 80), "is not a printable text of at most 79 bytes - at `$.driver`"),
        (_profile(gpus={}), "Expected `array`, got `object` - at `$.gpus`"),
        (_profile(extra=1), "unknown field `extra`"),
        (_profile(**{"a\nb\u0085ü": 1}), "unknown field `a b ü`"),
        ({key: value for key, value in _profile().items() if key != "models"}, "missing required field `models`"),
        (_gpu(model="x"), "there is no model 'x'"),
        (_gpu(minor=-1), "- at `$.gpus[0].minor`"),
        (_gpu(minor=1.5), "Expected `int | null`, got `float`"),
        (_gpu(uuid="GPU-1"), "'GPU-1' is not like GPU-"),
        (_gpu(bus_id="00000000:01:20.0"), "is not a PCI address"),
        (_gpu(compute_mode="fast"), "- at `$.gpus[0].compute_mode`"),
        (_gpu(mig=True), "mig is on, and the model is not mig_capable"),
        (_gpu(memory=1), "unknown field `memory` - at `$.gpus[0]`"),
        (_gpu(vbios="1\n2"), "is not a printable text of at most 31 bytes - at `$.gpus[0].vbios`"),
        (_profile(gpus=[{"model": "m", "serial": "1"}, {"model": "m", "serial": "1"}]), "the same serial"),
        (_model(compute_capability="8"), "- at `$.models.m.compute_capability`"),
        (_model(reserved_mib=1024), "leaves nothing of memory_mib"),
        (_model(pci_id="20B210DE"), "- at `$.models.m.pci_id`"),
        (_model(power_limit_w=10, power_min_w=20), "power_limit_w is not between"),
        (_model(minor=1), "unknown field `minor` - at `$.models.m`"),
        (_profile(models={"m": {**_MODEL}, "unused": {"fans": 9}}), "- at `$.models.unused.fans`"),
        (_joined(version="9.0"), "- at `$.nvlink[0].version`"),
        (_joined(via="switch", switches=["C4:00.0"]), "- at `$.nvlink[0].switches[0]`"),
        (_profile(nvlink=[*_joined(links=10)["nvlink"], *_joined(links=10)["nvlink"]]), "more than 18 links"),
        (_profile(nvlink=[*_joined()["nvlink"], *_joined(version="4.0")["nvlink"]]), "links of two versions"),
        (_profile(cpus=[{"numa": 0, "list": "3-1"}]), "3-1 is not a range of cores below 2048 - at `$.cpus[0].list`"),
        (_profile(cpus=[{"numa": 0, "list": "3"}] * 2), "a NUMA node is listed twice"),
        (_profile(processes=[{"gpu": 0, "pid": 0, "memory_mib": 1}]), "- at `$.processes[0].pid`"),
        (_profile(processes=[{"gpu": 0, "pid": 1, "memory_mib": 1}] * 2), "a process is listed twice for GPU 0"),
    ]
    said = [(words, _refused(profile)) for profile, words in mistakes]
    wrong = [(words, text) for words, text in said if words not in text or not re.fullmatch("box.json: .+", text)]
    assert wrong == []


@pytest.mark.parametrize(("cuda", "status"), [("12.4", 0), ("12", 2)])
def test_the_command_compiles_or_says_why_not(short_tmp: Path, cuda: str, status: int) -> None:
    profile, compiled = short_tmp / "box.json", short_tmp / "box.profile"
    profile.write_text(json.dumps(_profile(cuda=cuda)))
    command = [sys.executable, "-m", "sandbox.emulator_profile", str(profile), str(compiled)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (status, 1 if status else 0)
    assert compiled.exists() is (status == 0)


_ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 300)
    | st.text(max_size=9)
    | st.sampled_from(["node", "8.0", "m", "a100"]),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=4), children, max_size=3),
    max_leaves=5,
)


def _places(value: Json) -> list[tuple[Json, Json]]:
    """Every container and key of a document."""
    keys = range(len(value)) if isinstance(value, list) else list(value) if isinstance(value, dict) else []
    return [place for key in keys for place in [(value, key), *_places(value[key])]]


@examples(300)
@given(data=st.data())
def test_a_corrupted_profile_is_compiled_or_refused(data: st.DataObject) -> None:
    profile = shipped(data.draw(st.sampled_from(sorted(path.stem for path in PROFILES.glob("*.json")))))
    for _ in range(data.draw(st.integers(1, 3))):
        places = _places(profile)
        container, key = places[data.draw(st.integers(0, len(places) - 1))] if places else (profile, "x")
        if data.draw(st.booleans()):
            container[key] = data.draw(_ANYTHING)
        else:
            del container[key]
    assert len(_refused(profile).splitlines()) <= 1
