"""A pod's request is that of its GPU containers, with parts and preferences from its annotations."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.errors import ParseError, RequestError
from deviceplugin.model.allocation import ContainerRef, ContainerRole, PodRef, PodUid
from deviceplugin.model.annotation_names import AnnotationNames
from deviceplugin.model.pod import Pod, PodContainer, format_per_container
from deviceplugin.model.pod_request import parse_parts, pod_request
from deviceplugin.model.preferences import NodePolicy
from deviceplugin.model.request import Request
from tests.refusals import refusal

NAMES = AnnotationNames()
REF = PodRef(PodUid("u1"), "default", "train")


def _pod(*sizes: tuple[str, int, int], annotations: dict[str, str] | None = None, ref: PodRef = REF) -> Pod:
    containers = tuple(
        PodContainer(ContainerRef(ref, name), ContainerRole.APP, at, cores, blocks)
        for at, (name, cores, blocks) in enumerate(sizes)
    )
    return Pod(ref, containers, annotations=annotations or {})


def test_containers_without_gpus_are_left_out_and_places_stay() -> None:
    found = pod_request(_pod(("side", 0, 0), ("main", 20, 8)))
    assert [(each.name, each.index, each.request) for each in found.containers] == [("main", 1, Request(20, 8))]
    assert pod_request(_pod(("main", 0, 0))).containers == ()


def test_parts_and_preferences_come_from_annotations() -> None:
    found = pod_request(_pod(("main", 60, 32), annotations={NAMES.gpus: "main=2", NAMES.node_policy: "spread"}))
    assert found.containers[0].request == Request(60, 32, 2)
    assert found.preferences.node is NodePolicy.SPREAD


def test_pods_that_ask_for_the_same_have_one_shape() -> None:
    other = PodRef(PodUid("u2"), "default", "other")
    assert pod_request(_pod(("a", 20, 8))).shape == pod_request(_pod(("b", 20, 8), ref=other)).shape
    assert pod_request(_pod(("a", 20, 8))).shape != pod_request(_pod(("a", 20, 9))).shape


def test_a_request_that_is_none_is_refused() -> None:
    with pytest.raises(RequestError, match="150 is not possible"):
        pod_request(_pod(("main", 150, 8)))


def test_parts_are_for_every_container_or_by_name() -> None:
    expected = {"3": (3, 3), "main=2": (2, 1), "main=2, side=4": (2, 4), "2,side=1": (2, 1)}
    parts = {text: parse_parts({NAMES.gpus: text}, NAMES) for text in expected}
    assert {text: (found.of("main"), found.of("side")) for text, found in parts.items()} == expected


def test_parts_that_cannot_be_read_are_refused() -> None:
    texts = ["", "0", "65", "-1", "main=", "=2", "main=x", "main=2;side=1", "9" * 5000, "２"]
    said = [(text, refusal(ParseError, parse_parts, {NAMES.gpus: text}, NAMES)) for text in texts]
    assert [each for each in said if "vcuda-gpus holds" not in each[1]] == []


def test_parts_that_no_pod_needs_are_refused() -> None:
    with pytest.raises(ParseError, match="vcuda-gpus has 16401 characters; write at most 16384"):
        parse_parts({NAMES.gpus: "1," * 8200 + "1"}, NAMES)


@given(st.dictionaries(st.from_regex(r"[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True), st.integers(1, 16)))
def test_parts_read_back_as_written(by_name: dict[str, int]) -> None:
    if by_name:
        assert parse_parts({NAMES.gpus: format_per_container(by_name)}, NAMES).by_name == by_name
