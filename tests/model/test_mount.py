"""Which volumes of a pod keep vcuda from mounting anything at the path for forward compatibility."""

import itertools
import posixpath

from deviceplugin.model.allocation import covers_compat


def test_at_above_and_below() -> None:
    expected = {
        "/usr/local/cuda/compat": True,
        "/usr/local/cuda/compat/": True,
        "usr//local/./cuda": True,
        "/usr/local": True,
        "/": True,
        "/usr/local/cuda/compat/lib.real": True,
        "/usr/local/cuda/lib64": False,
        "/usr/local/cuda/compat-tools": False,
        "/usr/local/cuda-12.8": True,
        "/usr/local/cuda-12.8/compat": True,
        "/usr/local/cuda-none": True,
        "/usr/local/cuda-12.8/lib64": False,
        "/usr/local/cudastuff": False,
        "/data": False,
    }
    assert {path: covers_compat(path) for path in expected} == expected


def test_a_path_is_judged_as_it_is_resolved_however_it_is_written() -> None:
    over = {
        "",
        "usr",
        "usr/local",
        "usr/local/cuda",
        "usr/local/cuda-12",
        "usr/local/cuda/compat",
        "usr/local/cuda-12/compat",
    }
    parts = ["usr", "local", "cuda", "cuda-12", "compat", "..", ".", "", "var"]
    for written in itertools.product(parts, repeat=4):
        inside = posixpath.normpath("/" + "/".join(written).lstrip("/")).lstrip("/")
        is_over = inside in over or inside.startswith(("usr/local/cuda/compat/", "usr/local/cuda-12/compat/"))
        for lead in ("", "/", "//"):
            assert covers_compat(lead + "/".join(written)) == is_over, written
