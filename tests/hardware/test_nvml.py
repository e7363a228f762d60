"""NVML: errors that say what to do, old drivers, and which library is loaded."""

import re
import shutil
from pathlib import Path

import pytest
import structlog.testing

from deviceplugin.errors import DriverMissingError, HardwareError, NvmlCallError
from deviceplugin.hardware.device import Device, count, driver_of
from deviceplugin.hardware.nvml import SONAME, Nvml, NvmlLibrary, Status
from deviceplugin.model.gpu import Driver
from tests.hardware import nvml_library
from tests.hardware.conftest import Stub, uuid


@pytest.fixture
def nvml(stub: Stub) -> Nvml:
    one = Nvml(NvmlLibrary(path=stub.library))
    one.open()
    return one


def test_an_error_names_function_gpu_and_what_to_do(stub: Stub, nvml: Nvml) -> None:
    expected = {
        4: ("Insufficient Permissions", "give the agent access to the device nodes"),
        15: ("GPU is lost", "reset the GPU or reboot the node"),
        16: ("GPU requires restart", "reset the GPU (nvidia-smi --gpu-reset)"),
        999: ("Unknown Error", "see the kernel log (dmesg) for NVRM"),
        18: ("RM has detected an NVML/RM version mismatch", "reload the kernel module of the new driver"),
        77: ("an error of the stub", "see the kernel log (dmesg) for NVRM"),
    }
    device = Device.at(nvml, 1)
    device.uuid()
    found = {}
    for code in expected:
        stub.order("nvmlDeviceGetMemoryInfo.1", code)
        with pytest.raises(NvmlCallError) as raised:
            device.memory()
        assert raised.value.code == code
        begins, _, advice = raised.value.message.partition("; ")
        assert (
            begins == f"nvmlDeviceGetMemoryInfo failed for GPU 1 ({uuid(1)}): NVML says '{raised.value.said}' ({code})"
        )
        found[code] = (raised.value.said, advice[: len(expected[code][1])])
        assert "\n" not in advice
    assert found == expected


def test_a_question_that_this_gpu_does_not_answer_is_unknown(stub: Stub, nvml: Nvml) -> None:
    found = {}
    for code in (3, 4, 6, 13, 21, 25, 27):
        stub.order("nvmlDeviceGetUtilizationRates", code)
        found[code] = Device.at(nvml, 0).utilization()
    assert found == dict.fromkeys(found, 0)


def test_a_gpu_in_trouble_raises_even_for_a_question_that_may_stay_open(stub: Stub, nvml: Nvml) -> None:
    stub.order("nvmlDeviceGetUtilizationRates.0", 15)
    with pytest.raises(NvmlCallError, match="GPU is lost"):
        Device.at(nvml, 0).utilization()
    assert Device.at(nvml, 1).utilization() == 7


def test_a_function_that_the_driver_is_too_old_for_is_asked_and_logged_once(stub: Stub) -> None:
    nvml = Nvml(NvmlLibrary(path=stub.old_library))
    nvml.open()
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            for index in range(count(nvml)):
                assert not Device.at(nvml, index).mig_enabled()
    assert [entry["function"] for entry in logs] == ["nvmlDeviceGetMigMode"]


def test_a_handle_from_before_nvml_was_opened_again_is_refused(nvml: Nvml) -> None:
    device = Device.at(nvml, 0)
    nvml.close()
    with pytest.raises(NvmlCallError, match="before NVML was opened again") as raised:
        device.memory()
    assert raised.value.code == Status.UNINITIALIZED
    nvml.open()
    with pytest.raises(NvmlCallError):
        device.memory()
    assert Device.at(nvml, 0).memory()[0] == (16 << 30) - (512 << 20)


def test_without_a_driver_module_the_error_says_how_to_get_it(stub: Stub) -> None:
    stub.order("nvmlInitWithFlags", 9)
    with pytest.raises(DriverMissingError) as raised:
        Nvml(NvmlLibrary(path=stub.library)).open()
    assert raised.value.message == (
        "no NVIDIA driver answers: NVML says 'Driver Not Loaded'; load the nvidia kernel module (modprobe nvidia)"
    )


def test_another_failure_of_the_first_call_is_no_missing_driver(stub: Stub) -> None:
    stub.order("nvmlInitWithFlags", 999)
    with pytest.raises(NvmlCallError, match=r"^nvmlInit failed: NVML says 'Unknown Error'"):
        Nvml(NvmlLibrary(path=stub.library)).open()


def test_an_unknown_version_of_cuda_keeps_no_agent_from_starting(stub: Stub, nvml: Nvml) -> None:
    """NVML C: the agent did not start, for a number that it only shows."""
    stub.order("nvmlSystemGetCudaDriverVersion", 999)
    assert driver_of(nvml) == Driver("390.157", (0, 0))
    stub.order("nvmlSystemGetCudaDriverVersion", 9)
    with pytest.raises(NvmlCallError, match="Driver Not Loaded"):
        driver_of(nvml)


def test_a_library_below_a_driver_root_is_found(stub: Stub, short_tmp: Path) -> None:
    directory = short_tmp / "root/usr/lib/x86_64-linux-gnu"
    directory.mkdir(parents=True)
    shutil.copy(stub.library, directory / SONAME)
    nvml = Nvml(NvmlLibrary(root=short_tmp / "root"))
    nvml.open()
    assert driver_of(nvml).version == "390.157"
    assert driver_of(nvml).cuda == (9, 1)


def test_an_absolute_link_below_a_driver_root_leads_to_a_file_below_it(stub: Stub, short_tmp: Path) -> None:
    """As Debian's alternatives: outside the root the same path is another file, or none."""
    root, outside = short_tmp / "root", short_tmp / "outside"
    for directory in (root / "usr/lib64", root / f".{outside}", outside):
        directory.mkdir(parents=True)
    shutil.copy(stub.library, root / f".{outside}" / SONAME)
    (outside / SONAME).write_bytes(b"of the agent's image")
    (root / "usr/lib64" / SONAME).symlink_to(outside / SONAME)
    nvml = Nvml(NvmlLibrary(root=root))
    nvml.open()
    assert driver_of(nvml).version == "390.157"


def test_a_root_without_a_library_is_refused_and_the_systems_one_not_taken(short_tmp: Path) -> None:
    with pytest.raises(DriverMissingError, match=f"there is no {SONAME} below the driver root {short_tmp}"):
        Nvml(NvmlLibrary(root=short_tmp)).open()
    assert not nvml_library.is_mapped()


def test_a_file_that_is_no_library_is_refused_in_one_sentence(short_tmp: Path) -> None:
    path = short_tmp / "nvml.so"
    for content in (None, b"", b"not a library", b"\x7fELF"):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(DriverMissingError, match=f"^[^\n]*{path} cannot be loaded as NVML[^\n]*$"):
            Nvml(NvmlLibrary(path=path)).open()


def test_a_library_of_another_name_never_lets_the_systems_one_in(stub: Stub, short_tmp: Path) -> None:
    other = short_tmp / "libother.so.1"
    other.write_bytes(stub.library.read_bytes().replace(SONAME.encode() + b"\0", b"libnvidia-xx.so.1\0"))
    with pytest.raises(HardwareError, match=rf"{other} .*{SONAME}"):
        Nvml(NvmlLibrary(path=other)).open()


def test_forgetting_the_library_takes_the_file_that_is_there_then(stub: Stub, short_tmp: Path) -> None:
    path = short_tmp / "driver.so"
    shutil.copy(stub.library, path)
    nvml = Nvml(NvmlLibrary(path=path))
    nvml.open()
    assert nvml.optional("nvmlDeviceGetMigMode", Device.at(nvml, 0).handle) == [0, 0]
    nvml.forget_library()
    assert not nvml_library.is_mapped()
    fresh = short_tmp / "fresh.so"
    shutil.copy(stub.old_library, fresh)
    fresh.rename(path)
    nvml.open()
    assert nvml.optional("nvmlDeviceGetMigMode", Device.at(nvml, 0).handle) is None


def test_nothing_of_a_gpu_is_ever_set() -> None:
    """Lineage D9: a compute mode may be an operator's decision, and docs/policies.md says that it stays."""
    package = Path(__file__).parents[2] / "deviceplugin"
    asked = {name for path in package.rglob("*.py") for name in re.findall(r'"(nvml[A-Z]\w+)"', path.read_text())}
    assert "nvmlDeviceGetComputeMode" in asked
    assert [name for name in asked if re.match(r"nvml(Device|System|Unit|Gpu)(Set|Reset|Clear)", name)] == []
