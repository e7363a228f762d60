"""Names of control groups: kubelet's rules, every runtime, both versions, and whatever else may stand in a path."""

import time

from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.container.processes import (
    ContainerGroup,
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


def test_the_container_of_a_path() -> None:
    guaranteed = f"/kubepods.slice/kubepods-pod{UNDERSCORED}.slice"
    nested = (
        "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/"
        f"kubelet-kubepods-besteffort-pod{UNDERSCORED}.slice/cri-containerd-{ID}.scope"
    )
    uids = {
        f"/kubepods/burstable/pod{UID}/{ID}": UID,
        f"/kubepods/besteffort/pod{UID}/{ID}": UID,
        f"/kubepods/pod{UID}/{ID}": UID,
        f"/kubepods/burstable/pod{UID}/crio-{ID}": UID,
        f"/kubepods/pod{STATIC}/{ID}": STATIC,
        f"{SLICE}/cri-containerd-{ID}.scope": UID,
        f"{SLICE}/docker-{ID}.scope": UID,
        f"{SLICE}/crio-{ID}.scope/container": UID,
        f"{guaranteed}/cri-containerd-{ID}.scope": UID,
        nested: UID,
        f"/docker/{ID[::-1]}/kubelet/kubepods/pod{UID}/{ID}": UID,  # kind
        f"/../../kubepods/pod{UID}/{ID}": UID,  # as a namespace shows it
        f"{SLICE}/cri-containerd-{ID}.scope/init.scope/x": UID,  # groups of its own
    }
    found = {path: container_in(path) for path in uids}
    assert {path: each and (each.pod, each.container_id) for path, each in found.items()} == {
        path: (uid, ID) for path, uid in uids.items()
    }
    for path, each in found.items():
        assert each is not None
        assert path.startswith(each.path)
        assert each.path.removesuffix(".scope").endswith(ID)


def test_a_container_cannot_pass_for_another_pods_by_groups_that_it_makes() -> None:
    other = "00000000-0000-0000-0000-000000000000"
    found = container_in(f"/kubepods/pod{UID}/{ID}/kubepods/pod{other}/{ID[::-1]}")
    assert found is not None
    assert (found.pod, found.container_id) == (UID, ID)


def test_a_runtime_without_systemd_under_a_kubelet_with_it() -> None:
    """The whole name of the slice, the runtime and the id in one, as runc writes `slice:prefix:name` then.

    containerd#7276, kubernetes#106514, k3s#8470.
    """
    static = "9f86d081884c7d659a2feaa0c55ad015"
    burstable = f"kubepods-burstable-pod{UNDERSCORED}.slice:cri-containerd:{ID}"
    cases = {
        f"0::/system.slice/containerd.service/{burstable}": UID,
        f"12:perf_event:/{burstable}\n11:cpuset:/{burstable}\n1:name=systemd:/{burstable}": UID,
        f"9:memory:/system.slice/containerd.service/{burstable}\n0::/system.slice/containerd.service": UID,
        f"0::/system.slice/k3s.service/kubepods-pod{UNDERSCORED}.slice:cri-containerd:{ID}": UID,
        f"0::/system.slice/containerd.service/kubepods-burstable-pod{static}.slice:cri-containerd:{ID}": static,
        f"0::/system.slice/x/kubelet-kubepods-besteffort-pod{UNDERSCORED}.slice:cri-containerd:{ID}": UID,
        f"0::/{burstable}/inner": UID,
    }
    found = {text: container_of(parse_memberships(text.encode())) for text in cases}
    assert {text: (each.pod, each.container_id) for text, each in found.items() if each} == {
        text: (uid, ID) for text, uid in cases.items()
    }


def test_what_is_in_no_container_of_a_pod() -> None:
    paths = (
        "/",
        "/system.slice/containerd.service",
        f"/kubepods/burstable/pod{UID}",
        SLICE,
        f"{SLICE}/other.slice",
        f"/user/pod{UID}/{ID}",
        f"/kubepods/other/pod{UID}/{ID}",
        "/kubepods/podx/short",
    )
    assert [path for path in paths if container_in(path)] == []


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


def test_a_line_that_makes_no_sense_is_left_out() -> None:
    lines = (b"", b":", b"::", b"x::/a", b"1:memory", b"1:memory:relative", b"\xff:\xff:\xff")
    assert {line: parse_memberships(line + b"\n0::/good\n") for line in lines} == dict.fromkeys(lines, ("/good",))


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


@given(uids, ids)
def test_every_place_where_kubelet_may_put_a_container_is_understood(uid: str, id_: str) -> None:
    paths = paths_of(PodUid(uid), id_)
    assert len(set(paths)) == len(paths) > 0
    for path in paths:
        found = container_in(path)
        assert found is not None
        assert (found.pod, found.container_id, found.path) == (uid, id_, path)


def test_kubelets_root_among_the_groups() -> None:
    roots = {
        f"/kubepods/pod{UID}/{ID}": "",
        f"/kubelet/kubepods/pod{UID}/{ID}": "/kubelet",
        f"/docker/x/kubepods/pod{UID}/{ID}": "/docker/x",
        f"/a.slice/a-kubepods.slice/a-kubepods-pod{UNDERSCORED}.slice/cri-containerd-{ID}.scope": "/a.slice",
        "/system.slice": "",
    }
    assert {path: root_of(path) for path in roots} == roots
