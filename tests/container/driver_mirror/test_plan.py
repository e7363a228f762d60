"""What a mirror shall look like, file by file."""

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from deviceplugin.container.driver_mirror.components import SHARED, WHOLE, Components, Interposer, Interposers
from deviceplugin.container.driver_mirror.plan import Chosen, FileEntry, LinkEntry, MirrorPlan, make_plan
from deviceplugin.container.driver_mirror.search import DriverFile, DriverLibrary
from tests.container.driver_mirror.makers import library

CUDA = library("libcuda.so.580.1", "libcuda.so.1", links=("libcuda.so.1", "libcuda.so"))
NVML = library("libnvidia-ml.so.580.1", "libnvidia-ml.so.1", links=("libnvidia-ml.so",))
JIT = library("libnvidia-ptxjitcompiler.so.580.1", "libnvidia-ptxjitcompiler.so.1")
GL = library("libGLX_nvidia.so.580.1", "libGLX_nvidia.so.0")
NARROW_CUDA = library("libcuda.so.580.1", "libcuda.so.1", at="/usr/lib", bits=32)
NARROW_JIT = library("libnvidia-ptxjitcompiler.so.580.1", "libnvidia-ptxjitcompiler.so.1", at="/usr/lib", bits=32)
DRIVER = (CUDA, NVML, JIT, GL, NARROW_CUDA, NARROW_JIT)
SMI = {"nvidia-smi": DriverFile(Path("/usr/bin/nvidia-smi"), "smi")}
OURS = Interposers(
    (
        Interposer(Path("/o/libvcuda.so.1"), "v", ("libvcuda.so.1",)),
        Interposer(Path("/o/libcuda.so.1"), "c", ("libcuda.so.1", "libcuda.so")),
        Interposer(Path("/o/libnvidia-ml.so.1"), "m", ("libnvidia-ml.so.1", "libnvidia-ml.so")),
    )
)


def planned(
    libraries: Sequence[DriverLibrary] = DRIVER,
    *,
    ours: Interposers = OURS,
    shared: Components = SHARED,
    whole: Components = WHOLE,
) -> MirrorPlan:
    return make_plan(Chosen(libraries, SMI, ours, "580.1", Path("/host")), shared=shared, whole=whole)


def shown(plan: MirrorPlan, directory: str) -> dict[str, str]:
    """Names in one directory: where a link leads, or where a file comes from."""
    return {
        path.name: entry.target if isinstance(entry, LinkEntry) else f"={entry.source}"
        for path, entry in plan.entries.items()
        if str(path.parent) == directory
    }


def test_whole_gpus_get_the_driver_as_it_is() -> None:
    plan = planned()
    assert shown(plan, "origin/lib64") == {
        "libcuda.so.580.1": "=/usr/lib64/libcuda.so.580.1",
        "libcuda.so.1": "libcuda.so.580.1",
        "libcuda.so": "libcuda.so.580.1",
        "libnvidia-ml.so.580.1": "=/usr/lib64/libnvidia-ml.so.580.1",
        "libnvidia-ml.so.1": "libnvidia-ml.so.580.1",
        "libnvidia-ml.so": "libnvidia-ml.so.580.1",
        "libnvidia-ptxjitcompiler.so.580.1": "=/usr/lib64/libnvidia-ptxjitcompiler.so.580.1",
        "libnvidia-ptxjitcompiler.so.1": "libnvidia-ptxjitcompiler.so.580.1",
        "libGLX_nvidia.so.580.1": "=/usr/lib64/libGLX_nvidia.so.580.1",
        "libGLX_nvidia.so.0": "libGLX_nvidia.so.580.1",
        "libGLX_indirect.so.0": "libGLX_nvidia.so.580.1",
    }
    assert shown(plan, "origin/lib").keys() == {
        "libcuda.so.580.1",
        "libcuda.so.1",
        "libnvidia-ptxjitcompiler.so.580.1",
        "libnvidia-ptxjitcompiler.so.1",
    }
    assert shown(plan, "origin/bin") == {"nvidia-smi": "=/usr/bin/nvidia-smi"}


def test_shares_get_the_interposer_under_every_name_and_the_driver_under_an_alias() -> None:
    found = shown(planned(), "nvidia/lib64")
    assert {name: found[name] for name in found if "cuda" in name or "ml" in name} == {
        "libvcuda.so.1": "=/o/libvcuda.so.1",
        "libcuda.so.1": "=/o/libcuda.so.1",
        "libcuda.so": "=/o/libcuda.so.1",
        "libcuda.so.580.1": "=/o/libcuda.so.1",
        "libcuda-real.so.1": "=/usr/lib64/libcuda.so.580.1",
        "libnvidia-ml.so.1": "=/o/libnvidia-ml.so.1",
        "libnvidia-ml.so": "=/o/libnvidia-ml.so.1",
        "libnvidia-ml.so.580.1": "=/o/libnvidia-ml.so.1",
        "libnvidia-ml-real.so.1": "=/usr/lib64/libnvidia-ml.so.580.1",
    }
    others = {name for name in shown(planned(), "origin/lib64") if "cuda" not in name and "ml" not in name}
    assert found.keys() >= others


def test_a_driver_without_versions_in_its_names_stands_under_the_aliases() -> None:
    plan = planned([library("libcuda.so.1", "libcuda.so.1"), library("libnvidia-ml.so.1", "libnvidia-ml.so.1")])
    found = shown(plan, "nvidia/lib64")
    assert found["libcuda-real.so.1"] == "=/usr/lib64/libcuda.so.1"
    assert found["libnvidia-ml-real.so.1"] == "=/usr/lib64/libnvidia-ml.so.1"
    assert found["libcuda.so.1"] == "=/o/libcuda.so.1"
    assert shown(plan, "origin/lib64")["libcuda.so.1"] == "=/usr/lib64/libcuda.so.1"


def test_shares_have_no_32_bit_libcuda() -> None:
    assert shown(planned(), "nvidia/lib").keys() == {
        "libnvidia-ptxjitcompiler.so.580.1",
        "libnvidia-ptxjitcompiler.so.1",
    }


def test_our_objects_are_known_from_the_drivers() -> None:
    files = [entry for entry in planned().entries.values() if isinstance(entry, FileEntry)]
    assert {entry.is_interposer for entry in files if str(entry.source).startswith("/o/")} == {True}
    assert {entry.is_interposer for entry in files if not str(entry.source).startswith("/o/")} == {False}


def test_where_nothing_would_enforce_a_share_none_may_start() -> None:
    because = "shares cannot start, because nothing would enforce their limits: "
    lacks = "the driver below /host has no 64-bit "
    missing = "/o/libcuda.so.1 is missing; install it"
    refusals = {
        missing: planned(ours=Interposers(trouble=missing)).refusal,
        f"{lacks}libcuda.so.1; install": planned((NVML, JIT)).refusal,
        f"{lacks}libnvidia-ml.so.1; install": planned((CUDA, JIT)).refusal,
        f"{lacks}libcuda.so.1 and no libnvidia-ml.so.1; install": planned((NARROW_CUDA,)).refusal,
    }
    assert [each for reason, each in refusals.items() if not each.startswith(f"{because}{reason}")] == []
    assert planned().refusal == ""


def test_without_the_interposer_no_name_opens_the_driver() -> None:
    found = shown(planned(ours=Interposers(trouble="none")), "nvidia/lib64")
    assert [name for name in found if name.startswith(("libcuda", "libnvidia-ml"))] == [
        "libcuda-real.so.1",
        "libnvidia-ml-real.so.1",
    ]


def test_what_containers_need_and_the_driver_lacks_is_named() -> None:
    assert planned().missing == ()
    assert planned([]).missing == ("libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1")
    gl = library("libnvidia-glcore.so.580.1", needed=("libnvidia-tls.so.580.1", "libnvidia-ml.so.1", "libc.so.6"))
    assert planned([*DRIVER, gl]).missing == ("libnvidia-tls.so.580.1",)


def test_a_list_of_ones_own_decides_but_for_libcuda_and_nvml() -> None:
    plan = planned(shared=Components((), ()), whole=Components(("nvidia-smi", "none"), ("libGLX_nvidia",)))
    names = shown(plan, "nvidia/lib64").keys()
    assert {"libcuda-real.so.1", "libnvidia-ml-real.so.1", "libcuda.so.1"} <= names
    assert not [name for name in names if "GLX" in name or "jit" in name]
    assert shown(plan, "nvidia/bin") == {}
    assert {"libGLX_nvidia.so.0", "libcuda.so.1"} <= shown(plan, "origin/lib64").keys()
    assert "libnvidia-ptxjitcompiler.so.1" in plan.missing


def test_a_key_stands_for_names_and_contents_and_for_nothing_else() -> None:
    newer = DriverLibrary(DriverFile(JIT.source.path, "newer"), JIT.names, 64, JIT.elf)
    elsewhere = DriverLibrary(DriverFile(Path("/else"), JIT.source.identity), JIT.names, 64, JIT.elf)
    assert planned().key == planned(tuple(reversed(DRIVER))).key
    assert planned([CUDA, NVML, elsewhere]).key == planned([CUDA, NVML, JIT]).key
    keys = [planned().key, planned(DRIVER[:-1]).key, planned([CUDA, NVML, newer]).key, planned([CUDA, NVML, JIT]).key]
    keys += [planned(ours=Interposers()).key, MirrorPlan().key]
    assert len(set(keys)) == len(keys)


def test_links_never_lead_out_of_their_directory() -> None:
    plan = planned()
    for path, entry in plan.entries.items():
        if isinstance(entry, LinkEntry):
            assert PurePosixPath(entry.target).name == entry.target
            assert isinstance(plan.entries[path.with_name(entry.target)], FileEntry)
