"""The Allocate answer: what a container is given."""

from dataclasses import replace
from pathlib import PurePosixPath

import pytest

from deviceplugin.errors import HardwareError
from deviceplugin.kubelet.allocate_answer import HostLayout, answer_for, library_path
from deviceplugin.model.mount import Mount
from deviceplugin.model.pod import PodContainer
from deviceplugin.model.units import ResourceNames
from tests.kubelet.makers import gpu, grant, pod

LAYOUT = HostLayout(grants=PurePosixPath("/vm"), driver_mirror=PurePosixPath("/mirror"))
SHARE = pod("p", ("c", 20, 8)).containers[0]
WHOLE = pod("p", ("c", 200, 0)).containers[0]


def everything(path: str) -> bool:
    return True


def test_a_share_sees_its_gpu_its_limits_and_the_interposer() -> None:
    answer = answer_for(grant(SHARE, (3, 20, 8)), [gpu(3)], SHARE, LAYOUT, exists=everything)
    assert answer.devices == (
        ("/dev/nvidia3", "/dev/nvidia3"),
        ("/dev/nvidiactl", "/dev/nvidiactl"),
        ("/dev/nvidia-uvm", "/dev/nvidia-uvm"),
    )
    assert answer.mounts == (
        Mount("/vm/g-1", "/etc/vcuda"),
        Mount("/vm/g-1/state/region", "/etc/vcuda/state/region", read_only=False),
        Mount("/vm/g-1/state/GPU-3.activity", "/etc/vcuda/state/GPU-3.activity", read_only=False),
        Mount("/vm/gpus/GPU-3", "/etc/vcuda/gpus/GPU-3"),
        Mount("/mirror/nvidia", "/usr/local/nvidia"),
        Mount("/mirror/nvidia/lib64", "/usr/local/cuda/compat"),
    )
    assert dict(answer.env) == {"LD_LIBRARY_PATH": "/usr/local/nvidia/lib64", "NVIDIA_VISIBLE_DEVICES": "GPU-3"}
    assert dict(answer.annotations) == {
        "tencent.com/vcuda-core": "20",
        "tencent.com/vcuda-memory": str(8 << 28),
        "tencent.com/vcuda-device": "/dev/nvidia3",
    }
    assert answer.cdi_devices == ()


def test_whole_gpus_get_the_untouched_driver() -> None:
    answer = answer_for(grant(WHOLE, (0, 100, 64), (1, 100, 64)), [gpu(0), gpu(1)], WHOLE, LAYOUT, exists=everything)
    assert answer.mounts == (Mount("/vm/g-1", "/etc/vcuda"), Mount("/mirror/origin", "/usr/local/nvidia"))
    assert dict(answer.env)["NVIDIA_VISIBLE_DEVICES"] == "GPU-0,GPU-1"
    assert dict(answer.annotations)["tencent.com/vcuda-device"] == "/dev/nvidia0,/dev/nvidia1"


def test_where_the_pod_has_a_volume_there_is_no_mount_for_forward_compatibility() -> None:
    """A mount in a read-only volume would keep the container from starting."""
    share = replace(SHARE, has_volume_over_compat=True)
    answer = answer_for(grant(share, (3, 20, 8)), [gpu(3)], share, LAYOUT, exists=everything)
    assert [mount.inside for mount in answer.mounts if "/cuda/" in mount.inside] == []
    assert answer.mounts[-1] == Mount("/mirror/nvidia", "/usr/local/nvidia")


def test_optional_nodes_are_given_only_where_they_exist() -> None:
    layout = HostLayout(
        grants=PurePosixPath("/vm"),
        driver_mirror=PurePosixPath("/mirror"),
        device_root=PurePosixPath("/host"),
        extra_devices=("/dev/here", "/dev/missing"),
    )
    there = {"/host/dev/nvidia0", "/host/dev/nvidiactl", "/host/dev/here"}
    answer = answer_for(grant(SHARE, (0, 20, 8)), [gpu(0)], SHARE, layout, exists=there.__contains__)
    assert answer.devices == (
        ("/host/dev/nvidia0", "/dev/nvidia0"),
        ("/host/dev/nvidiactl", "/dev/nvidiactl"),
        ("/host/dev/here", "/dev/here"),
    )


def test_a_node_that_nothing_works_without_is_named(subtests: pytest.Subtests) -> None:
    for missing in ["/dev/nvidia0", "/dev/nvidiactl"]:
        with subtests.test(missing=missing), pytest.raises(HardwareError, match=f"device node {missing} is missing"):
            answer_for(grant(SHARE, (0, 20, 8)), [gpu(0)], SHARE, LAYOUT, exists=missing.__ne__)


def test_the_domain_and_cdi_follow_the_options() -> None:
    layout = HostLayout(PurePosixPath("/vm"), PurePosixPath("/mirror"), names=ResourceNames("example.org"), cdi=True)
    answer = answer_for(grant(SHARE, (0, 20, 8)), [gpu(0)], SHARE, layout, exists=everything)
    assert set(dict(answer.annotations)) == {
        "example.org/vcuda-core",
        "example.org/vcuda-memory",
        "example.org/vcuda-device",
    }
    assert answer.cdi_devices == ("example.org/vcuda=g-1",)


def test_our_libraries_come_first(subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, str], str]] = [
        ({}, "/usr/local/nvidia/lib64"),
        ({"LD_LIBRARY_PATH": "/opt/lib"}, "/usr/local/nvidia/lib64:/opt/lib"),
        ({"compat32": "true"}, "/usr/local/nvidia/lib"),
        ({"compat32": "True"}, "/usr/local/nvidia/lib"),
        ({"compat32": "TRUE"}, "/usr/local/nvidia/lib"),
        ({"compat32": "false"}, "/usr/local/nvidia/lib64"),
    ]
    for env, expected in cases:
        with subtests.test(env=env):
            assert library_path(PodContainer(SHARE.ref, SHARE.role, 0, env=env)) == expected
