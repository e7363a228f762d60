"""A lost journal is rebuilt from kubelet's checkpoint: the same containers, the same GPUs, the same amounts."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.ledger.grant import Checkpoint, CheckpointEntry, Grant, GrantId, RecordedAnswer, Source
from deviceplugin.ledger.reconcile import rebuild, rebuild_one
from deviceplugin.model.allocation import ContainerRole, PodUid
from deviceplugin.model.gpu import DeviceId, Inventory, device_ids, gpu_keys
from deviceplugin.model.request import Request
from deviceplugin.model.units import BLOCK_BYTES, Resource
from deviceplugin.placement.snapshot import occupied
from deviceplugin.structs import replace
from tests.ledger.makers import BLOCKS, grant, inventory, pod, uuid

NODE = inventory(4)


def recorded(of: Grant, *, first: Resource = Resource.CORE, node: Inventory = NODE) -> tuple[CheckpointEntry, ...]:
    """What kubelet writes for a grant: the full answer with the resource that was asked first."""
    allocation = of.allocation
    answer = RecordedAnswer(
        grant=of.id,
        gpus=tuple(share.uuid for share in allocation.shares),
        cores=allocation.request.cores,
        memory_bytes=allocation.request.blocks * BLOCK_BYTES,
    )
    counts = {Resource.CORE: allocation.request.cores, Resource.MEMORY: allocation.request.blocks}
    return tuple(
        CheckpointEntry(
            *allocation.owner.key,
            resource,
            frozenset(DeviceId(f"{resource.value}{number}") for number in range(count)),
            answer if resource is first else None,
        )
        for resource, count in counts.items()
        if count
    )


@given(
    size=st.one_of(
        st.tuples(st.integers(1, 99), st.integers(1, BLOCKS)),
        st.sampled_from([(100, 0), (200, 0), (200, 70), (400, 0)]),
    ),
    first=st.sampled_from(Resource),
    role=st.sampled_from(ContainerRole),
    index=st.integers(0, 9),
)
def test_what_is_rebuilt_is_what_was_granted(
    size: tuple[int, int], first: Resource, role: ContainerRole, index: int
) -> None:
    cores, blocks = size
    whole = grant("a", cores=cores, blocks=blocks, on=range(max(1, cores // 100)), role=role, index=index, proved=True)
    wanted = frozenset(Resource) if blocks else frozenset({Resource.CORE})
    whole = replace(whole, answered=wanted, source=Source.CHECKPOINT, created=7.0)
    checkpoint = Checkpoint(recorded(whole, first=first if blocks else Resource.CORE))
    found = rebuild(checkpoint, NODE, created=7.0, pods={PodUid("uid-a"): pod("a", role=role, index=index)})
    assert found.grants == (whole,)
    assert found.failures == ()


@given(gpus=st.integers(2, 4), cores=st.integers(1, 99), blocks=st.integers(1, BLOCKS), first=st.sampled_from(Resource))
def test_a_share_over_several_gpus_is_rebuilt_with_its_parts(
    gpus: int, cores: int, blocks: int, first: Resource
) -> None:
    """The recorded answer names the GPUs, and less than these have was asked."""
    one = grant("a", cores=cores, blocks=blocks, on=range(gpus))
    request = Request(cores * gpus, blocks * gpus, gpus)
    parted = replace(one, allocation=replace(one.allocation, request=request))
    (found,) = rebuild(
        Checkpoint(recorded(parted, first=first)), NODE, created=7.0, pods={PodUid("uid-a"): pod("a")}
    ).grants
    assert found.allocation == parted.allocation


def test_ids_that_only_hint_at_several_gpus_make_no_parts() -> None:
    keys = gpu_keys(gpu.uuid for gpu in NODE.gpus)
    ids = frozenset(each for gpu in NODE.gpus[:2] for each in device_ids(Resource.CORE, gpu, keys[gpu.uuid])[:5])
    answer = RecordedAnswer(GrantId("g-1"), (), 10, 4 * BLOCK_BYTES)
    checkpoint = Checkpoint((CheckpointEntry(PodUid("uid-a"), "main", Resource.CORE, ids, answer),))
    assert rebuild(checkpoint, NODE, created=0.0).grants == ()


def test_without_the_pods_names_are_empty_and_roles_unknown() -> None:
    checkpoint = Checkpoint(recorded(grant("a", role=ContainerRole.INIT)))
    (found,) = rebuild(checkpoint, NODE, created=7.0).grants
    assert found.allocation.owner.key == (PodUid("uid-a"), "main")
    assert found.allocation.owner.pod.name == ""
    assert found.allocation.role is ContainerRole.UNKNOWN


@given(
    pods=st.lists(
        st.tuples(st.sampled_from([ContainerRole.INIT, ContainerRole.SIDECAR]), st.integers(1, 40), st.booleans()),
        max_size=5,
    ),
    app=st.tuples(st.integers(1, 40), st.booleans()),
)
def test_a_container_that_is_rebuilt_without_its_pod_only_ever_counts_too_much(
    pods: list[tuple[ContainerRole, int, bool]], app: tuple[int, bool]
) -> None:
    """A damaged journal loses some grants of a pod and keeps others."""
    listed = [(role, index, cores, lost) for index, (role, cores, lost) in enumerate(pods)]
    listed.append((ContainerRole.APP, 0, *app))
    true = [
        grant("a", container=f"{role.value}-{index}", role=role, index=index, cores=cores)
        for role, index, cores, _ in listed
    ]
    entries = (recorded(each) for each, (*_, lost) in zip(true, listed, strict=True) if lost)
    rebuilt = rebuild(Checkpoint(tuple(itertools.chain(*entries))), NODE, created=0.0).grants
    kept = [each for each, (*_, lost) in zip(true, listed, strict=True) if not lost]
    assert len(rebuilt) + len(kept) == len(true)
    exact = occupied(each.allocation for each in true)[uuid(0)]
    counted = occupied(each.allocation for each in (*kept, *rebuilt))[uuid(0)]
    assert counted.cores >= exact.cores
    assert counted.blocks >= exact.blocks


def test_pods_that_ended_or_are_unknown_are_left_out() -> None:
    checkpoint = Checkpoint((*recorded(grant("a")), *recorded(grant("b")), *recorded(grant("c"))))
    pods = {PodUid("uid-a"): pod("a", phase="Failed"), PodUid("uid-b"): pod("b")}
    assert [each.id for each in rebuild(checkpoint, NODE, created=0.0, pods=pods).grants] == ["g-b-main"]


def test_a_container_of_gpu_manager_is_taken_up_under_a_lasting_name() -> None:
    entries = [
        replace(each, answer=replace(each.answer, grant=None) if each.answer else None) for each in recorded(grant("a"))
    ]
    (first,) = rebuild(Checkpoint(tuple(entries)), NODE, created=0.0).grants
    (second,) = rebuild(Checkpoint(tuple(entries)), NODE, created=0.0).grants
    assert first == second
    assert (first.id, first.is_of_gpu_manager) == ("uid-a", True)
    assert first.allocation.shares == grant("a").allocation.shares


def test_where_the_answer_names_no_gpu_the_ids_do() -> None:
    keys = gpu_keys(gpu.uuid for gpu in NODE.gpus)
    ids = frozenset(device_ids(Resource.CORE, NODE.gpus[2], keys[uuid(2)])[:30])
    answer = RecordedAnswer(GrantId("g-1"), (), None, None)
    checkpoint = Checkpoint((CheckpointEntry(PodUid("a"), "main", Resource.CORE, ids, answer),))
    (found,) = rebuild(checkpoint, NODE, created=0.0).grants
    assert found.allocation.uuids == {uuid(2)}
    assert found.allocation.request.cores == 30


def test_a_gpu_that_is_gone_is_still_held() -> None:
    checkpoint = Checkpoint((*recorded(grant("a", on=(3,))), *recorded(grant("b", cores=200, blocks=6, on=(0, 3)))))
    first, second = rebuild(checkpoint, inventory(1), created=0.0).grants
    assert [(share.uuid, share.cores, share.blocks) for share in first.allocation.shares] == [(uuid(3), 30, 8)]
    assert [(share.uuid, share.blocks) for share in second.allocation.shares] == [(uuid(0), BLOCKS), (uuid(3), 3)]


def test_an_answer_that_does_not_say_what_is_held_is_reported(subtests: pytest.Subtests) -> None:
    one = GrantId("g-1")
    for answer, ids in (
        (RecordedAnswer(one, (), None, None), ["tencent.com/vcuda-core-1"]),
        (RecordedAnswer(one, (uuid(0), uuid(1)), None, None), ["c1", "c2"]),
        (RecordedAnswer(one, (uuid(0),), 130, None), []),
        (RecordedAnswer(one, (uuid(0),), None, None), []),
        (RecordedAnswer(one, (), 30, None), []),
    ):
        with subtests.test(answer=answer):
            devices = frozenset(DeviceId(each) for each in ids)
            checkpoint = Checkpoint((CheckpointEntry(PodUid("uid-a"), "main", Resource.CORE, devices, answer),))
            found = rebuild(checkpoint, NODE, created=0.0)
            assert found.grants == ()
            (sentence,) = found.failures
            assert "container main of pod uid-a" in sentence


def test_one_container_is_rebuilt_alone() -> None:
    checkpoint = Checkpoint((*recorded(grant("a")), *recorded(grant("b"))))
    found = rebuild_one(checkpoint, PodUid("uid-b"), "main", NODE)
    assert found is not None
    assert found.id == "g-b-main"
    assert rebuild_one(checkpoint, PodUid("uid-c"), "main", NODE) is None
