"""Every function of NVML's headers of CUDA 12 and 13 is hooked, or has a written reason why not."""

import re
import sysconfig
from functools import cache
from pathlib import Path

import pytest

from scripts.driver_functions import base, classes, hooks

_CLASSES = classes("nvml")
_HOOKS = hooks("nvml")
_HOOKED = {base(name) for name in _HOOKS}
_PLACE = {name for one in _CLASSES.values() for name in one.functions}
_HEADERS = {12: "nvidia/nvml_dev/include/nvml.h", 13: "nvidia/cu13/include/nvml.h"}
_DECLARED = re.compile(r"\b(?:nvmlReturn_t|const\s+char\s*\*)\s*DECLDIR\s+(nvml\w+)\s*\(")
_WORDS = {"nvmlErrorString"}  # says something of no GPU


@cache
def declared(major: int) -> frozenset[str]:
    """Without comments, but without the preprocessor too: it would hide one half of the versions."""
    path = Path(sysconfig.get_paths()["purelib"]) / _HEADERS[major]
    text = re.sub(r"/\*.*?\*/", "", path.read_text(errors="replace"), flags=re.DOTALL)
    return frozenset(_DECLARED.findall(text)) - _WORDS


def unclassified(names: frozenset[str]) -> set[str]:
    return {name for name in names if base(name) not in _PLACE or (base(name) in _HOOKED and name not in _HOOKS)}


@pytest.mark.parametrize("major", _HEADERS)
def test_every_function_is_classified_and_hooked_in_all_versions(major: int) -> None:
    names = declared(major)
    assert len(names) > 350
    advice = (
        "classify it in library/interposer/nvml/functions.toml; hook it if it tells totals, processes or utilization"
    )
    assert unclassified(names) == set(), advice


def test_a_release_that_brings_one_more_fails() -> None:
    more = ["nvmlDeviceGetMemoryInfo_v3", "nvmlDeviceGetWhoRuns", "nvmlDeviceGetUtilizationRates_v2"]
    assert {name: unclassified(declared(13) | {name}) for name in more} == {name: {name} for name in more}


def test_each_function_stands_in_one_class_and_exists() -> None:
    every = [name for one in _CLASSES.values() for name in one.functions]
    assert len(every) == len(set(every))
    assert set(every) == {base(name) for name in declared(12) | declared(13)}


def test_every_hook_is_a_function_of_the_headers() -> None:
    assert declared(12) | declared(13) >= _HOOKS


def test_a_class_says_what_its_hooks_do_and_why_others_have_none(subtests: pytest.Subtests) -> None:
    for key, one in _CLASSES.items():
        with subtests.test(key):
            without = set(one.functions) - _HOOKED
            assert bool(one.hooked) == bool(set(one.functions) & _HOOKED)
            assert set(one.unhooked) <= without
            assert one.passed or without <= set(one.unhooked)
