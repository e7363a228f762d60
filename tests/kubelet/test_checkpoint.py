"""Kubelet's checkpoint is read, and anything else is a ParseError that names the place."""

import base64
import json
import resource
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.errors import KubeletError, ParseError
from deviceplugin.kubelet.checkpoint import MOST_BYTES, CheckpointReader
from deviceplugin.ledger.grant import Checkpoint, RecordedAnswer
from deviceplugin.model.allocation import PodUid
from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.units import Resource, ResourceNames
from deviceplugin.wire import deviceplugin_pb2 as pb

NAMES = ResourceNames()
UID = PodUid("0b7c3a52-7f0e-4f30-9a3c-3b8a8c3c5d11")


def parse_checkpoint(data: bytes, names: ResourceNames = NAMES, *, where: str = "kubelet's checkpoint") -> Checkpoint:
    return CheckpointReader(Path(), names).parse(data, where=where)


def read_checkpoint(path: Path) -> Checkpoint:
    return CheckpointReader(path).read()


def answer(
    *, mount: str = "/etc/vcuda/vm/g-0011223344556677", uuids: str = "GPU-a,GPU-b", **annotations: str
) -> pb.ContainerAllocateResponse:
    values = {"core": "30", "memory": "2147483648", "device": "/dev/nvidia0,/dev/nvidia1"} | annotations
    return pb.ContainerAllocateResponse(
        envs={"NVIDIA_VISIBLE_DEVICES": uuids, "LD_LIBRARY_PATH": "/usr/local/nvidia/lib64"},
        mounts=[
            pb.Mount(container_path="/usr/local/nvidia", host_path="/etc/vcuda/vdriver", read_only=True),
            pb.Mount(container_path="/etc/vcuda", host_path=mount, read_only=True),
        ],
        annotations={f"tencent.com/vcuda-{key}": value for key, value in values.items()},
    )


def entry(
    ids: object,
    *,
    uid: str = UID,
    container: str = "main",
    resource: str = NAMES.core,
    response: pb.ContainerAllocateResponse | None = None,
    **fields: object,
) -> dict[str, object]:
    """A list of IDs stands for a node without NUMA."""
    data = base64.b64encode((response or pb.ContainerAllocateResponse()).SerializeToString()).decode()
    by_node = {"-1": ids} if isinstance(ids, list) else ids
    made = {"PodUID": uid, "ContainerName": container, "ResourceName": resource, "DeviceIDs": by_node}
    return made | {"AllocResp": data} | fields


def wrapped(*entries: Mapping[str, object]) -> bytes:
    data = {"PodDeviceEntries": list(entries), "RegisteredDevices": {NAMES.core: ["c1", "c2"]}}
    return json.dumps({"Data": data, "Checksum": 1234567890}).encode()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(wrapped(entry({"-1": ["c1", "c2"]}, response=answer())), id="no NUMA"),
        pytest.param(wrapped(entry({"0": ["c1"], "1": ["c1", "c2"]}, response=answer())), id="device in two nodes"),
        pytest.param(wrapped(entry({"0": ["c2", "c1"], "1": None}, response=answer())), id="empty node"),
    ],
)
def test_an_entry_has_the_ids_of_all_numa_nodes_and_the_answer(data: bytes) -> None:
    (found,) = parse_checkpoint(data).entries
    assert (found.pod, found.container, found.resource) == (UID, "main", Resource.CORE)
    assert found.devices == {"c1", "c2"}
    assert found.answer == RecordedAnswer(
        grant="g-0011223344556677",  # type: ignore[arg-type]
        gpus=(GpuUuid("GPU-a"), GpuUuid("GPU-b")),
        cores=30,
        memory_bytes=2147483648,
        directory="/etc/vcuda/vm/g-0011223344556677",
        driver="/etc/vcuda/vdriver",
        mounts=("/etc/vcuda/vdriver", "/etc/vcuda/vm/g-0011223344556677"),
    )


def test_a_checkpoint_without_vcuda_entries_is_empty(subtests: pytest.Subtests) -> None:
    for data in [
        b'{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":1}',
        b'{"Data":{"PodDeviceEntries":[],"RegisteredDevices":null},"Checksum":1}',
        wrapped(entry(["x"], resource="nvidia.com/gpu", AllocResp="not base64!", DeviceIDs=7)),
    ]:
        with subtests.test(data=data):
            assert parse_checkpoint(data) == Checkpoint()


def test_other_domains_are_other_resources() -> None:
    data = wrapped(entry(["c1"], resource="example.org/vcuda-core"), entry(["c2"]))
    assert [each.devices for each in parse_checkpoint(data, ResourceNames("example.org")).entries] == [{"c1"}]


def test_the_second_resource_has_an_empty_answer() -> None:
    data = wrapped(
        entry(["c1"], resource=NAMES.core, AllocResp=None),
        entry(["m1", "m2"], resource=NAMES.memory, response=answer()),
    )
    found = parse_checkpoint(data)
    assert found.grant_of(UID, "main") == "g-0011223344556677"
    first = found.entry(UID, "main", Resource.CORE)
    assert first is not None
    assert first.answer is None
    assert found.ids_of(UID, "main", Resource.MEMORY) == {"m1", "m2"}


def test_entries_are_found_by_container_by_grant_and_by_ids() -> None:
    other = PodUid("other")
    found = parse_checkpoint(
        wrapped(
            entry(["c1", "c2"], container="init", response=answer(mount="/vm/g-1")),
            entry(["c1", "c2"], container="main", response=answer(mount="/vm/g-2/")),
            entry(["c1"], uid=other, response=answer(mount="/vm/g-3")),
            entry(["c1", "c2"], uid=other, resource=NAMES.memory),
        )
    )
    assert found.owners_of(Resource.CORE, ["c2", "c1"]) == ((UID, "init"), (UID, "main"))
    assert found.owners_of(Resource.MEMORY, ["c1", "c2"]) == ((other, "main"),)
    assert found.owners_of(Resource.CORE, ["c2"]) == ()
    assert found.owner_of_grant(found.grant_of(UID, "main") or pytest.fail("no grant")) == (UID, "main")
    assert found.containers == ((UID, "init"), (UID, "main"), (other, "main"))
    assert (found.has(other, "main"), found.has(other, "init")) == (True, False)
    assert found.ids_of(other, "init", Resource.CORE) == frozenset()
    assert found.grant_of(other, "init") is None
    assert found.without({(UID, "main"), (other, "main")}).containers == ((UID, "init"),)


def test_an_answer_of_gpu_manager_names_no_grant() -> None:
    data = wrapped(entry(["tencent.com/vcuda-core-0"], response=answer(mount=f"/etc/gpu-manager/vm/{UID}")))
    (found,) = parse_checkpoint(data).entries
    assert found.answer is not None
    assert found.answer.grant is None
    assert found.answer.gpus == ("GPU-a", "GPU-b")


def test_what_is_no_checkpoint_is_refused_with_its_place(subtests: pytest.Subtests) -> None:
    for data, place in [
        (b"", "truncated"),
        (b"\0" * 100, "malformed"),
        (b"[]", r"Expected `object`"),
        (b"{}", "missing required field `Data`"),
        (b'{"Data":null}', r"\$.Data"),
        (b'{"Data":{}}', "PodDeviceEntries"),
        (b'{"Data":{"PodDeviceEntries":7}}', r"\$.Data.PodDeviceEntries"),
        (wrapped(entry([])).replace(b"PodUID", b"PodUid"), "entry 0: Object missing required field `PodUID`"),
        (wrapped(entry([]))[:-30], "truncated|malformed"),
        (wrapped(entry(7)), "entry 0: tencent.com/vcuda-core of container .main.: DeviceIDs"),
        (wrapped(entry({"0": [1]})), "DeviceIDs"),
        (wrapped(entry([]), entry([], container="b", AllocResp="*")), "entry 1: .*container .b.: AllocResp"),
        (wrapped(entry([], AllocResp="AAAA")), "AllocResp"),
        (wrapped(entry([], AllocResp=5)), "AllocResp"),
        (wrapped(entry([], response=answer(core="many"))), "annotation tencent.com/vcuda-core is not a number: 'many'"),
        (wrapped(entry([], response=answer(memory="²"))), "annotation tencent.com/vcuda-memory"),
        (wrapped(entry([], response=answer(mount="/vm/.."))), "names no grant"),
        (wrapped(entry([], response=answer(mount=""))), "names no grant"),
        (b"[" * 100_000, "not a checkpoint"),
        (b'{"Data":' * 5000, "not a checkpoint"),
        (b'{"Data":{"PodDeviceEntries":[{"PodUID":"\xff"}]}}', "entry 0: .*utf-8"),
    ]:
        with subtests.test(data=data):
            with pytest.raises(ParseError, match=place) as refused:
                parse_checkpoint(data, where="/var/lib/kubelet/x")
            assert refused.value.message.startswith("/var/lib/kubelet/x")
            assert "\n" not in refused.value.message


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
odd_entries = st.fixed_dictionaries(
    {},
    optional={
        "PodUID": json_values,
        "ContainerName": st.text() | json_values,
        "ResourceName": st.sampled_from([NAMES.core, NAMES.memory]) | json_values,
        "DeviceIDs": st.lists(st.text()) | st.dictionaries(st.text(), st.lists(st.text()) | st.none()) | json_values,
        "AllocResp": st.binary(max_size=60).map(lambda data: base64.b64encode(data).decode()) | json_values,
    },
)
odd_files = st.one_of(
    st.binary(max_size=300),
    json_values.map(lambda value: json.dumps(value).encode()),
    st.lists(odd_entries, max_size=3).map(lambda entries: wrapped(*entries)),
)


@given(odd_files)
def test_any_bytes_are_a_checkpoint_or_a_parse_error(data: bytes) -> None:
    with suppress(ParseError):
        assert isinstance(parse_checkpoint(data), Checkpoint)


@given(st.data())
def test_a_real_file_with_any_byte_changed_is_a_checkpoint_or_a_parse_error(data: st.DataObject) -> None:
    whole = wrapped(entry({"0": ["c1"], "1": ["c2"]}, response=answer()), entry(["m1"], resource=NAMES.memory))
    place = data.draw(st.integers(0, len(whole) - 1))
    changed = whole[:place] + bytes([data.draw(st.integers(0, 255))]) + whole[place + 1 :]
    with suppress(ParseError):
        assert len(parse_checkpoint(changed).entries) <= 2


def test_a_missing_file_is_an_empty_checkpoint_and_says_so(short_tmp: Path) -> None:
    found = read_checkpoint(short_tmp / "kubelet_internal_checkpoint")
    assert found == Checkpoint(exists=False)
    assert found.containers == ()


def test_a_reader_sees_every_change_though_it_decodes_each_entry_once(short_tmp: Path) -> None:
    path = short_tmp / "kubelet_internal_checkpoint"
    reader = CheckpointReader(path)
    old, new = entry(["c1"], container="a"), entry(["c2"], container="b", response=answer())
    for entries in ([old], [old, new], [new], [entry(["c3"], container="b")], [], [new, old]):
        path.write_bytes(wrapped(*entries))
        found, fresh = reader.read(), read_checkpoint(path)
        assert found == fresh
        assert found.containers == fresh.containers == tuple((UID, each["ContainerName"]) for each in entries)
        assert found.grant_of(UID, "b") == fresh.grant_of(UID, "b")
    path.write_bytes(wrapped(old, entry(5)))
    with pytest.raises(ParseError, match="entry 1"):
        reader.read()
    path.unlink()
    assert reader.read() == Checkpoint(exists=False)


def test_an_unreadable_file_is_one_sentence(short_tmp: Path) -> None:
    with pytest.raises(KubeletError, match="cannot be read: is a directory"):
        read_checkpoint(short_tmp)


def test_a_file_beyond_the_bound_is_not_read_whole(short_tmp: Path) -> None:
    path = short_tmp / "kubelet_internal_checkpoint"
    with path.open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(KubeletError, match="file too large; it has more than 32 MiB, so drain the node"):
        read_checkpoint(path)
    with path.open("wb") as file:
        file.truncate(MOST_BYTES)
    with pytest.raises(ParseError, match="is not a checkpoint"):
        read_checkpoint(path)


def test_where_no_descriptor_is_left_nobody_is_told_to_run_the_agent_as_root(short_tmp: Path) -> None:
    """Faults D8."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(KubeletError, match="too many open files; raise the limit of open files"):
            read_checkpoint(short_tmp)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_damaged_file_is_named(short_tmp: Path) -> None:
    path = short_tmp / "kubelet_internal_checkpoint"
    path.write_bytes(b"{")
    with pytest.raises(ParseError, match=str(path)):
        read_checkpoint(path)


def test_reading_while_kubelet_replaces_the_file_gives_one_whole_version(short_tmp: Path) -> None:
    path = short_tmp / "kubelet_internal_checkpoint"
    versions = [wrapped(*(entry([f"c{n}"], container=str(n)) for n in range(size))) for size in (1, 400)]
    path.write_bytes(versions[0])
    done = threading.Event()

    def replace() -> None:
        while not done.is_set():
            for data in versions:
                temporary = path.with_name(".temporary")
                temporary.write_bytes(data)
                temporary.replace(path)

    writer = threading.Thread(target=replace)
    writer.start()
    try:
        seen = {len(read_checkpoint(path).entries) for _ in range(200)}
    finally:
        done.set()
        writer.join(timeout=10)
    assert seen <= {1, 400}


def test_a_file_of_a_full_node_of_sixteen_gpus_is_read_whole() -> None:
    ids = [f"{number:060d}" for number in range(900)]
    data = wrapped(
        *(
            entry({"0": ids[:450], "1": ids[450:]}, uid=f"pod-{number}", resource=name, response=answer())
            for number in range(16)
            for name in (NAMES.core, NAMES.memory)
        )
    )
    assert len(data) > 1_800_000
    found = parse_checkpoint(data)
    assert len(found.entries) == 32
    assert {len(each.devices) for each in found.entries} == {900}
