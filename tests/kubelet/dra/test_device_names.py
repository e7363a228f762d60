"""A GPU keeps the name of its device, whatever its minor number becomes."""

from pathlib import Path

from deviceplugin.kubelet.dra.slice_publisher import DeviceNames
from deviceplugin.model.gpu import Gpu
from deviceplugin.structs import replace
from tests.kubelet.makers import gpu

A, B, C = gpu(0), gpu(1), gpu(2)


def moved(one: Gpu, minor: int) -> Gpu:
    return replace(one, minor=minor)


def test_a_gpu_keeps_its_name_through_other_numbers_and_restarts(tmp_path: Path) -> None:
    names = DeviceNames(tmp_path)
    assert [names.name(each) for each in (A, B)] == ["gpu-0", "gpu-1"]
    again = DeviceNames(tmp_path)
    assert [again.name(each) for each in (moved(A, 1), moved(B, 0))] == ["gpu-0", "gpu-1"]


def test_a_new_gpu_gets_a_name_that_is_free(tmp_path: Path) -> None:
    names = DeviceNames(tmp_path)
    names.name(A)
    names.name(B)
    assert names.name(moved(C, 1)) == "gpu-2"
    names.forget_all_but({B.uuid, C.uuid})
    assert DeviceNames(tmp_path).name(replace(A, uuid=replace(gpu(7)).uuid, minor=1)) == "gpu-0"


def test_a_file_that_says_nothing_good_is_as_none(tmp_path: Path) -> None:
    for text in ("{", "[]", '{"GPU-0": 3}', '{"GPU-0": "gpu-5", "GPU-1": "gpu-5"}'):
        (tmp_path / "device-names.json").write_text(text)
        assert DeviceNames(tmp_path).name(A) == "gpu-0"


def test_names_that_cannot_be_kept_are_given_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert DeviceNames(tmp_path / "file").name(A) == "gpu-0"
