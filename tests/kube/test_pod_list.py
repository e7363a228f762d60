"""The same list read again and again."""

import json

import pytest

from deviceplugin.errors import ParseError
from deviceplugin.kube.pods import PodListReader
from sandbox.station import pod_json


def body(*names: str, phase: str = "Pending") -> bytes:
    return json.dumps(
        {
            "items": [
                {
                    "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
                    "spec": pod_json(name, ("c", 20, 4))["spec"],
                    "status": {"phase": phase},
                }
                for name in names
            ]
        }
    ).encode()


def test_every_reading_is_what_the_body_says() -> None:
    reader = PodListReader()
    for text in (body("a", "b"), body("a", "b", phase="Running"), body("b"), body(), body("b", "a"), body("a", "a")):
        assert reader.read(text) == PodListReader().read(text)


def test_an_unchanged_pod_is_not_parsed_again() -> None:
    reader = PodListReader()
    (first, _), (again,) = reader.read(body("a", "b")), reader.read(body("a"))
    assert again is first


def test_what_is_no_list_of_pods_is_a_parse_error(subtests: pytest.Subtests) -> None:
    for text in [b"", b"[]", b'{"items": [1]}', b'{"items": [{"metadata": 7}]}', b"\xff"]:
        with subtests.test(text=text):
            reader = PodListReader()
            with pytest.raises(ParseError, match="the list of pods"):
                reader.read(text)
            assert reader.read(body("a")) == PodListReader().read(body("a"))
