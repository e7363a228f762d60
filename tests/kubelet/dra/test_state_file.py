"""Kubelet's record of prepared claims: as a real kubelet 1.36 wrote it, damaged, and missing."""

import contextlib
import json
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.errors import KubeletError, ParseError
from deviceplugin.kubelet.dra.state_file import MOST_BYTES, StateFile, parse_state
from deviceplugin.model.claims import ClaimRef, ClaimUid
from sandbox.claims import recorded_device, write_record

DRIVER = "gpu.vcuda.tencent.com"
CDI = "tencent.com/vcuda=g-0123456789abcdef"
Json = dict[str, object]


def written(claims: object, **more: object) -> bytes:
    """The file as kubelet 1.36.2 writes it (pkg/kubelet/cm/dra/state/checkpoint.go)."""
    version = {"kind": "DRACheckpoint", "apiVersion": "checkpoint.dra.kubelet.k8s.io/v1"}
    text = json.dumps(version | {"ClaimInfoStateList": claims}, separators=(",", ":"))
    return json.dumps({"Data": text, "Checksum": zlib.crc32(text.encode())} | more).encode()


def claim(uid: str, *, driver: str = DRIVER, devices: object = (), pods: tuple[str, ...] = ("pod-1",)) -> Json:
    return {
        "ClaimUID": uid,
        "ClaimName": f"name-{uid}",
        "Namespace": "research",
        "PodUIDs": {each: {} for each in pods},
        "DriverState": {driver: {"Devices": devices}},
    }


def device(*names: str) -> Json:
    return {
        "PoolName": "node-a",
        "DeviceName": "gpu-0",
        "ShareID": "1b7a3f52-4c39-4c1f-9d7b-6a3c1b1f0a11",
        "RequestNames": ["gpu"],
        "CDIDeviceIDs": list(names),
    }


def test_claims_have_their_pods_and_what_the_driver_answered() -> None:
    data = written([claim("a", devices=[device(CDI)], pods=("pod-1", "pod-2")), claim("b", driver="gpu.nvidia.com")])
    found = parse_state(data, DRIVER, where="x")
    assert list(found.claims) == ["a"]
    one = found.claims[ClaimUid("a")]
    assert one.ref == ClaimRef(ClaimUid("a"), "research", "name-a")
    assert one.pods == {"pod-1", "pod-2"}
    assert one.cdi == {"gpu": CDI}


def test_a_repeated_answer_counts_once() -> None:
    data = written([claim("a", devices=[device(CDI), device(CDI), device()])])
    assert parse_state(data, DRIVER, where="x").claims[ClaimUid("a")].cdi == {"gpu": CDI}


def test_go_writes_null_for_what_is_empty(subtests: pytest.Subtests) -> None:
    for claims in [
        None,
        [],
        [claim("a", devices=None)],
        [claim("a") | {"DriverState": None}],
        [claim("a") | {"PodUIDs": None, "DriverState": {DRIVER: {}}}],
    ]:
        with subtests.test(claims=claims):
            found = parse_state(written(claims), DRIVER, where="x")
            assert all(not each.cdi for each in found.claims.values())


def test_a_missing_file_is_a_kubelet_without_claims(tmp_path: Path) -> None:
    found = StateFile(tmp_path / "dra_manager_state", DRIVER).read()
    assert (dict(found.claims), found.exists) == ({}, False)


def test_the_file_is_read_again_when_it_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "dra_manager_state"
    file = StateFile(path, DRIVER)
    path.write_bytes(written([claim("a")]))
    first = file.read()
    assert file.read() is first
    path.write_bytes(written([claim("a"), claim("b")]))
    assert set(file.read().claims) == {"a", "b"}


def test_a_file_beyond_the_bound_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "dra_manager_state"
    with path.open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(KubeletError, match="cannot be read: file too large"):
        StateFile(path, DRIVER).read()


def test_what_kubelet_did_not_write_is_an_error(subtests: pytest.Subtests) -> None:
    for data, sentence in [
        (b"", "x: "),
        (b"{}", "x: "),
        (b"[]", "x: "),
        (written([], Checksum=1), "x: its checksum is wrong; kubelet does not start with it"),
        (written([{"ClaimName": "without a UID"}]), "x: "),
        (written("none"), "x: "),
        (b"\xff\xfe", "x: "),
        (b"[" * 100_000, "x: "),
    ]:
        with subtests.test(data=data):
            with pytest.raises(ParseError) as refused:
                parse_state(data, DRIVER, where="x")
            assert refused.value.message.startswith(sentence)


@given(st.binary(max_size=200) | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(written))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(ParseError):
        parse_state(data, DRIVER, where="x")


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(KubeletError, match="cannot be read: is a directory"):
        StateFile(tmp_path / "folder", DRIVER).read()


def test_the_stand_in_writes_what_kubelet_writes(tmp_path: Path) -> None:
    """The file that the tests of the agent read was one that no kubelet wrote."""
    path = tmp_path / "dra_manager_state"
    one, two = (ClaimRef(ClaimUid(uid), "research", f"name-{uid}") for uid in ("a", "b"))
    write_record(tmp_path, DRIVER, [one, two], pods={"a": ["pod-1"]})
    before = path.stat().st_ino
    share = "1b7a3f52-4c39-4c1f-9d7b-6a3c1b1f0a11"
    answers = {"a": recorded_device("node-a", "gpu-0", CDI, share_id=share)}
    write_record(tmp_path, DRIVER, [one, two], answers, pods={"a": ["pod-1"]})
    assert path.read_bytes() == written(
        [claim("a", devices=[device(CDI)]), claim("b", devices=None, pods=("pod-of-b",))]
    )
    assert (path.stat().st_mode & 0o777, path.stat().st_ino == before) == (0o600, False)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
