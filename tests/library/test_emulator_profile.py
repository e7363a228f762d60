"""Profiles: what is left out is filled in as documented, and every mistake is reported in one line with its place."""

import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tests.examples import examples
from tests.library.machine import PROFILES, Machine, Profile, shipped

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
    machine.describe(_profile(gpus=[{"model": "m"}] * 65))
    done = machine.run("check")
    assert (done.returncode, "more than 64 GPUs" in done.stderr) == (2, True)


def test_a_machine_may_have_no_gpu(machine: Machine) -> None:
    machine.describe(_profile(gpus=[]))
    assert machine.nvml().devices() == []


def _gpu(**fields: Json) -> Profile:
    return _profile(gpus=[{"model": "m"} | fields])


def _model(**fields: Json) -> Profile:
    return _profile(models={"m": _MODEL | fields})


def _joined(**fields: Json) -> Profile:
    return _profile(nvlink=[{"gpus": [0, 1], "links": 2, "version": "3.0", "via": "direct"} | fields])


def test_each_mistake_is_reported_in_one_line(machine: Machine) -> None:
    mistakes = [
        (_profile(format=2), "format must be a whole number from 1 to 1"),
        (_profile(cuda="12"), 'cuda must be a version like "12.4"'),
        (_profile(driver=""), "driver must have 1 to 79 bytes"),
        (_profile(gpus={}), "gpus must be a list, not an object"),
        (_profile(extra=1), 'unknown key "extra"'),
        (_profile(**{"a\nb\u0085ü": 1}), 'unknown key "a?b????"'),
        ({key: value for key, value in _profile().items() if key != "models"}, 'the key "models" is missing'),
        (_gpu(model="x"), 'there is no model "x"'),
        (_gpu(minor=-1), "minor must be a whole number from 0 to 1023"),
        (_gpu(minor=1.5), "minor must be a whole number"),
        (_gpu(minor="1"), "minor must be a number, not a text"),
        (_gpu(uuid="GPU-1"), "uuid must look like"),
        (_gpu(bus_id="0:1:2"), '"0:1:2" is not a PCI address'),
        (_gpu(bus_id="00000000:01:20.0"), "is not a PCI address"),
        (_gpu(compute_mode="fast"), "compute_mode must be one of default, exclusive_thread"),
        (_gpu(mig=True), "mig is on, but the model is not mig_capable"),
        (_gpu(memory=1), 'unknown key "memory"'),
        (_profile(gpus=[{"model": "m", "minor": 1}, {"model": "m"}]), "minor 1 belongs to GPU 0 already"),
        (_model(compute_capability="8"), "compute_capability must be a version"),
        (_model(reserved_mib=1024), "leaves nothing of memory_mib"),
        (_model(pci_id="20B210DE"), 'pci_id must be a text like "0x20B210DE"'),
        (_model(power_limit_w=10, power_min_w=20), "power_limit_w (10) is not between"),
        (_model(minor=1), 'unknown key "minor"'),
        (_profile(topology={"default": "far"}), "default must be one of internal, single"),
        (_profile(topology={"groups": [{"level": "node", "gpus": [0, 2]}]}), "from 0 to 1"),
        (_profile(topology={"groups": [{"level": "node", "gpus": [0, 0]}]}), "GPU 0 stands here twice"),
        (_joined(links=19), "links must be a whole number from 1 to 18"),
        (_joined(via="switch"), "needs the bus ids of the switches"),
        (_joined(switches=["00000000:C4:00.0"]), '"switches" goes with "via": "switch" only'),
        (_joined(version="9.0"), "version must be one of"),
        (_profile(nvlink=[*_joined(links=10)["nvlink"], *_joined(links=10)["nvlink"]]), "more than 18 links"),
        (_profile(cpus=[{"numa": 0, "list": "3-1"}]), "list must be cores below 2048"),
        (_profile(processes=[{"gpu": 2, "pid": 1, "memory_mib": 1}]), "there is no GPU at position 2"),
        (_profile(processes=[{"gpu": 0, "pid": 1, "memory_mib": 1}] * 2), "process 1 stands on GPU 0 twice"),
    ]
    wrong = []
    for profile, words in mistakes:
        machine.describe(profile)
        done = machine.run("check")
        said = re.fullmatch(r"vcuda-emulator: .*profile\.json:\d+:\d+: .+\n", done.stderr) and words in done.stderr
        if done.returncode != 2 or not said:
            wrong.append((words, done.returncode, done.stderr))
    assert wrong == []


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


@examples(60, suppress=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_corrupted_profile_is_read_or_rejected(sanitized_machine: Machine, data: st.DataObject) -> None:
    profile = shipped(data.draw(st.sampled_from(sorted(path.stem for path in PROFILES.glob("*.json")))))
    for _ in range(data.draw(st.integers(1, 3))):
        places = _places(profile)
        container, key = places[data.draw(st.integers(0, len(places) - 1))] if places else (profile, "x")
        if data.draw(st.booleans()):
            container[key] = data.draw(_ANYTHING)
        else:
            del container[key]
    sanitized_machine.describe(profile)
    done = sanitized_machine.run("check")
    assert done.returncode in (0, 2), done.stderr
    assert len(done.stderr.splitlines()) == (1 if done.returncode else 0), done.stderr
