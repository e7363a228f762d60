"""The Allocate answer: what a container is given."""

from functools import partial
from pathlib import PurePosixPath

import pytest

from deviceplugin.errors import HardwareError, RequestError
from deviceplugin.kubelet.allocate_answer import HostLayout, answer_for, library_path, why_outdated
from deviceplugin.ledger.grant import GrantId, RecordedAnswer
from deviceplugin.model.allocation import Mount
from deviceplugin.model.pod import PodContainer
from deviceplugin.model.units import ResourceNames
from deviceplugin.structs import replace
from tests.kubelet.makers import gpu, grant, pod
from tests.refusals import refusal

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


HOST = HostLayout(
    grants=PurePosixPath("/vm"),
    driver_mirror=PurePosixPath("/mirror"),
    device_root=PurePosixPath("/host"),
    extra_devices=("/dev/here", "/dev/missing"),
)
NEEDED = ("/host/dev/nvidia0", "/host/dev/nvidiactl", "/host/dev/nvidia-uvm")


def test_extra_devices_are_given_only_where_they_exist_and_the_others_are_written_down() -> None:
    there = {*NEEDED, "/host/dev/here"}
    answer = answer_for(grant(SHARE, (0, 20, 8)), [gpu(0)], SHARE, HOST, exists=there.__contains__)
    assert [host for host, _ in answer.devices] == [*NEEDED, "/host/dev/here"]
    assert answer.missing == ("/dev/missing",)
    assert dict(answer.annotations)["tencent.com/vcuda-missing-devices"] == "/dev/missing"


def recorded(*devices: str, missing: tuple[str, ...] = ()) -> RecordedAnswer:
    return RecordedAnswer(GrantId("g-1"), (), 20, 0, devices=devices, missing=missing)


def test_an_answer_is_outdated_when_its_device_nodes_are_not_those_of_its_gpus(subtests: pytest.Subtests) -> None:
    extra = (*NEEDED, "/host/dev/here")
    cases: dict[str, tuple[RecordedAnswer, int, str]] = {
        "as it was": (recorded(*extra, missing=("/dev/missing",)), 0, ""),
        "another number": (recorded(*extra), 1, "its GPU GPU-1 is /dev/nvidia1 now, and kubelet recorded /dev/nvidia0"),
        "no GPU": (recorded(*extra[1:]), 0, "its GPU GPU-0 is /dev/nvidia0 now, and kubelet recorded no device node"),
        "one too many": (recorded(*extra, "/host/dev/nvidia7"), 0, "kubelet recorded /dev/nvidia7 for it, which is"),
        "without unified memory": (
            recorded(*NEEDED[:2]),
            0,
            "device node /dev/nvidia-uvm was missing on",
        ),
        "an extra one that came": (recorded(*NEEDED, missing=("/dev/here",)), 0, "device node /dev/here was missing"),
        "an extra one of a later setting": (recorded(*NEEDED), 0, ""),
        "of gpu-manager": (
            recorded("/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm"),
            0,
            "its GPU GPU-0 is /dev",
        ),
    }
    there = {*extra, "/host/dev/nvidia1", "/host/dev/nvidia7"}
    for name, (answer, minor, why) in cases.items():
        with subtests.test(case=name):
            found = why_outdated(answer, [gpu(minor)], HOST, exists=there.__contains__)
            assert found.startswith(why)
            assert bool(found) == bool(why)


def test_an_answer_whose_device_node_is_missing_may_come_right() -> None:
    """After a boot a module may be loaded a little later."""
    there = {*NEEDED[:2], "/host/dev/here"}
    with pytest.raises(HardwareError, match="device node /host/dev/nvidia-uvm, which kubelet recorded for the contai"):
        why_outdated(recorded(*NEEDED), [gpu(0)], HOST, exists=there.__contains__)


def test_a_node_that_nothing_works_without_is_named(subtests: pytest.Subtests) -> None:
    for missing in ["/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"]:
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


def test_a_library_path_that_no_image_needs_is_refused_for_devices_and_for_cdi() -> None:
    """Security A-12: 1 MiB of it was written into the CDI file, which every reader of the node parses."""
    for text, said in (
        ("x" * 4096, ""),
        ("ü" * 2048, ""),
        ("x" * 4097, "container c: its LD_LIBRARY_PATH has more than 4,096 bytes"),
        ("ü" * 2049, "container c: its LD_LIBRARY_PATH has more than 4,096 bytes"),
    ):
        asking = PodContainer(SHARE.ref, SHARE.role, 0, env={"LD_LIBRARY_PATH": text})
        for cdi in (False, True):
            layout = HostLayout(PurePosixPath("/vm"), PurePosixPath("/mirror"), cdi=cdi)
            call = partial(answer_for, grant(SHARE, (0, 20, 8)), [gpu(0)], asking, layout, exists=everything)
            assert refusal(RequestError, call).startswith(said), text[:3]
            if not said:
                assert dict(call().env)["LD_LIBRARY_PATH"].endswith(f":{text}")


def test_the_library_path_is_all_that_an_answer_has_of_the_pods_text() -> None:
    """Whatever else the pod says of its container changes nothing."""
    other = {"compat32": "no" * 4096, "SUBMITTER": "x" * 4096, "NVIDIA_VISIBLE_DEVICES": "all"}
    asking = PodContainer(SHARE.ref, SHARE.role, 0, env=other)
    layout = HostLayout(PurePosixPath("/vm"), PurePosixPath("/mirror"), cdi=True)
    made = grant(SHARE, (0, 20, 8))
    plain = answer_for(made, [gpu(0)], SHARE, layout, exists=everything)
    assert answer_for(made, [gpu(0)], asking, layout, exists=everything) == plain
