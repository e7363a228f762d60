"""Which volumes of a pod keep vcuda from mounting anything at the path for forward compatibility."""

from deviceplugin.model.mount import covers_compat


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
