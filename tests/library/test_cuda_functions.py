"""Every function that CUDA's headers declare, from 11.8 to the newest, is hooked or has a written reason why not."""

import re
import sysconfig
from pathlib import Path

import pytest

from deviceplugin.model.gpu import NEWEST_CUDA
from scripts.driver_functions import base, classes, hooks
from tests.library.cuda_declarations import constants
from tests.library.cuda_releases import declared, listed

_CLASSES = classes("cuda")
_HOOKS = hooks("cuda")
_HOOKED = {base(name) for name in _HOOKS}
_PLACE = {name: key for key, one in _CLASSES.items() for name in one.functions}
_LOCKED = {"12.9": "nvidia/cuda_runtime/include", "13.5": "nvidia/cu13/include"}
_ADVICE = "classify it in library/interposer/cuda/functions.toml, and hook it if it allocates, launches or tells totals"


def unclassified(names: frozenset[str]) -> set[str]:
    """What a release brings and nobody has looked at: a new function, or a new version of one that is hooked."""
    return {name for name in names if base(name) not in _PLACE or (base(name) in _HOOKED and name not in _HOOKS)}


def test_every_function_of_a_release_is_classified_and_hooked_in_all_versions() -> None:
    assert {release: unclassified(names) for release, names in listed().items() if unclassified(names)} == {}, _ADVICE


@pytest.mark.parametrize("release", _LOCKED)
def test_the_headers_at_hand_are_classified_and_in_the_list(release: str) -> None:
    """Also of a release that the list does not have: this is what fails first when the lock moves to a new one."""
    names = declared(Path(sysconfig.get_paths()["purelib"]) / _LOCKED[release])
    assert len(names) > 600
    assert unclassified(names) == set(), _ADVICE
    assert names == listed()[release], "run `python -m tests.library.cuda_releases`"


_DECIDING = ("CUmemLocationType", "CUmemAllocationType", "CUmemAllocationHandleType", "CUlimit", "CUgraphNodeType")


def test_every_value_that_decides_what_a_known_function_takes_is_known() -> None:
    """A release may bring another kind of memory without a new function: places in parts of a GPU came so."""
    header = (Path(sysconfig.get_paths()["purelib"]) / _LOCKED["13.5"] / "cuda.h").read_text(errors="replace")
    values = {}
    for enumeration in _DECIDING:
        found = re.search(rf"typedef enum {enumeration}_enum {{(.*?)}} {enumeration};", header, flags=re.DOTALL)
        text = re.sub(r"/\*.*?\*/", "", found[1], flags=re.DOTALL) if found else ""
        values[enumeration] = set(re.findall(r"\bCU_(?!LIMIT_MAX|\w+_RESERVED_)\w+", text))
    assert [enumeration for enumeration, names in values.items() if len(names) < 3] == []
    advice = (
        "see what it does to memory and launches in library/interposer/cuda, then declare it in library/include/cuda.h"
    )
    assert set().union(*values.values()) - set(constants()) == set(), advice


def test_the_agent_knows_the_newest_release_of_the_list() -> None:
    assert ".".join(map(str, NEWEST_CUDA)) == list(listed())[-1] == list(_LOCKED)[-1]


def test_a_release_that_brings_one_more_fails() -> None:
    more = ["cuMemAllocSomewhere", "cuMemCreate_v2", "cuLaunchKernel_v2_ptsz", "cuMemAlloc_v3", "cuGraphLaunch_v2"]
    assert {name: unclassified(listed()["13.5"] | {name}) for name in more} == {name: {name} for name in more}


def test_each_function_stands_in_one_class_and_exists() -> None:
    every = [name for one in _CLASSES.values() for name in one.functions]
    assert len(every) == len(set(every))
    newest = list(listed().values())[-1]
    assert set(every) == {base(name) for name in newest}


def test_every_hook_is_a_function_of_some_release() -> None:
    assert set().union(*listed().values()) >= _HOOKS


def test_a_class_says_what_its_hooks_do_or_why_there_are_none(subtests: pytest.Subtests) -> None:
    """In a class with hooks, what has none has its own reason."""
    for key, one in _CLASSES.items():
        with subtests.test(key):
            assert bool(one.hooked) != bool(one.passed)
            without = set(one.functions) - _HOOKED
            assert bool(one.hooked) == bool(set(one.functions) & _HOOKED)
            assert set(one.unhooked) == (without if one.hooked else set())
