"""Names of control groups: kubelet's rules, every runtime, both versions, and whatever else may stand in a path."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.container.cgroup import (
    ContainerGroup,
    Naming,
    container_in,
    container_of,
    parse_memberships,
    paths_of,
    root_of,
)
from deviceplugin.model.allocation import PodUid

UID = PodUid("3b0c3f0e-6b8a-4a53-9e0c-2f1d6f7a9b10")
UNDERSCORED = UID.replace("-", "_")
STATIC = PodUid("9f86d081884c7d659a2feaa0c55ad015")
ID = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
SLICE = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDERSCORED}.slice"


@pytest.mark.parametrize(
    ("path", "uid"),
    [
        pytest.param(f"/kubepods/burstable/pod{UID}/{ID}", UID, id="cgroupfs"),
        pytest.param(f"/kubepods/besteffort/pod{UID}/{ID}", UID, id="cgroupfs-best-effort"),
        pytest.param(f"/kubepods/pod{UID}/{ID}", UID, id="cgroupfs-guaranteed"),
        pytest.param(f"/kubepods/burstable/pod{UID}/crio-{ID}", UID, id="cgroupfs-cri-o"),
        pytest.param(f"/kubepods/pod{STATIC}/{ID}", STATIC, id="static-pod"),
        pytest.param(f"{SLICE}/cri-containerd-{ID}.scope", UID, id="systemd-containerd"),
        pytest.param(f"{SLICE}/docker-{ID}.scope", UID, id="systemd-docker"),
        pytest.param(f"{SLICE}/crio-{ID}.scope/container", UID, id="systemd-cri-o-child"),
        pytest.param(
            f"/kubepods.slice/kubepods-pod{UNDERSCORED}.slice/cri-containerd-{ID}.scope",
            UID,
            id="systemd-guaranteed",
        ),
        pytest.param(
            f"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/"
            f"kubelet-kubepods-besteffort-pod{UNDERSCORED}.slice/cri-containerd-{ID}.scope",
            UID,
            id="systemd-nested",
        ),
        pytest.param(f"/docker/{ID[::-1]}/kubelet/kubepods/pod{UID}/{ID}", UID, id="kind"),
        pytest.param(f"/../../kubepods/pod{UID}/{ID}", UID, id="from-a-namespace"),
        pytest.param(f"{SLICE}/cri-containerd-{ID}.scope/init.scope/x", UID, id="groups-of-its-own"),
    ],
)
def test_the_container_of_a_path(path: str, uid: PodUid) -> None:
    found = container_in(path)
    assert found is not None
    assert (found.pod, found.container_id) == (uid, ID)
    assert path.startswith(found.path)
    assert found.path.removesuffix(".scope").endswith(ID)


def test_a_container_cannot_pass_for_another_pods_by_groups_that_it_makes() -> None:
    other = "00000000-0000-0000-0000-000000000000"
    found = container_in(f"/kubepods/pod{UID}/{ID}/kubepods/pod{other}/{ID[::-1]}")
    assert found is not None
    assert (found.pod, found.container_id) == (UID, ID)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/system.slice/containerd.service",
        f"/kubepods/burstable/pod{UID}",
        f"{SLICE}",
        f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDERSCORED}.slice/other.slice",
        f"/user/pod{UID}/{ID}",
        f"/kubepods/other/pod{UID}/{ID}",
        "/kubepods/podx/short",
    ],
)
def test_what_is_in_no_container_of_a_pod(path: str) -> None:
    assert container_in(path) is None


def test_the_lines_of_both_versions() -> None:
    v1 = f"12:cpu,cpuacct:/a\n3:memory:/kubepods/pod{UID}/{ID}\n1:name=systemd:/b\n0::/\n".encode()
    assert parse_memberships(v1) == (
        "/a",
        f"/kubepods/pod{UID}/{ID}",
        "/b",
        "/",
    )
    found = container_of(parse_memberships(v1))
    assert found is not None
    assert found.container_id == ID
    assert container_of(parse_memberships(b"0::/system.slice/x\n")) is None


@pytest.mark.parametrize("line", [b"", b":", b"::", b"x::/a", b"1:memory", b"1:memory:relative", b"\xff:\xff:\xff"])
def test_a_line_that_makes_no_sense_is_left_out(line: bytes) -> None:
    assert parse_memberships(line + b"\n0::/good\n") == ("/good",)


def test_a_path_of_many_parts_takes_a_moment() -> None:
    began = time.process_time()
    assert container_of(parse_memberships(b"0::" + b"/" * (64 << 10))) is None
    assert time.process_time() - began < 3


def test_a_path_with_colons_stays_whole() -> None:
    assert parse_memberships(b"0::/kubepods-x.slice:cri-containerd:abc\n") == ("/kubepods-x.slice:cri-containerd:abc",)


@given(st.binary(max_size=2000))
def test_whatever_the_bytes_are_there_is_an_answer(data: bytes) -> None:
    memberships = parse_memberships(data)
    assert all(each.startswith("/") for each in memberships)
    found = container_of(memberships)
    assert found is None or isinstance(found, ContainerGroup)


parts = st.sampled_from(
    ["kubepods", "burstable", "kubepods.slice", f"pod{UID}", "pod", f"kubepods-pod{UNDERSCORED}.slice", ID, "..", "x"]
)


@given(st.lists(parts, max_size=8))
def test_a_container_is_found_where_its_path_says_and_nowhere_else(names: list[str]) -> None:
    path = "/" + "/".join(names)
    found = container_in(path)
    if found is not None:
        assert path == found.path or path.startswith(f"{found.path}/")
        assert found.pod == UID
        assert container_in(found.path) == found


uids = st.uuids().map(str) | st.from_regex(r"[0-9a-f]{32}", fullmatch=True)
ids = st.from_regex(r"[0-9a-f]{64}", fullmatch=True)


@given(uids, ids, st.sampled_from([None, *Naming]))
def test_every_place_where_kubelet_may_put_a_container_is_understood(uid: str, id_: str, naming: Naming | None) -> None:
    paths = paths_of(PodUid(uid), id_, naming)
    assert len(set(paths)) == len(paths) > 0
    for path in paths:
        found = container_in(path)
        assert found is not None
        assert (found.pod, found.container_id, found.path) == (uid, id_, path)


@pytest.mark.parametrize(
    ("path", "root"),
    [
        (f"/kubepods/pod{UID}/{ID}", ""),
        (f"/kubelet/kubepods/pod{UID}/{ID}", "/kubelet"),
        (f"/docker/x/kubepods/pod{UID}/{ID}", "/docker/x"),
        (f"/a.slice/a-kubepods.slice/a-kubepods-pod{UNDERSCORED}.slice/cri-containerd-{ID}.scope", "/a.slice"),
        ("/system.slice", ""),
    ],
)
def test_kubelets_root_among_the_groups(path: str, root: str) -> None:
    assert root_of(path) == root
