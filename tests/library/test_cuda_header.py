"""Our declarations of CUDA's driver interface and the table of its functions agree with CUDA 12 and 13."""

import re
import subprocess
import sysconfig
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.library.cuda_declarations import OURS, Row, constants, members, rows, types, unsupported
from tests.library.cuda_releases import WHEELS, declared, fetch, listed

pytestmark = pytest.mark.thorough

_LAYOUT = Path(__file__).parent / "native/cuda_layout.c"
_INTERNAL = "-D__CUDA_API_VERSION_INTERNAL"  # every version of a function is declared, under the name that is exported
_WHEELS = {12: "nvidia/cuda_runtime/include", 13: "nvidia/cu13/include"}

# Versions of our functions that the table leaves out: they speak 32-bit addresses, which nothing has since CUDA 3.2.
_LEFT_OUT = {
    "PFN_cuArray3DGetDescriptor_v2000",
    "PFN_cuArrayGetDescriptor_v2000",
}

# What the graphics interfaces' headers need of others, which are not in the wheels: types alone.
_GRAPHICS = {
    "GL/gl.h": "typedef unsigned GLuint, GLenum;",
    "EGL/egl.h": "typedef void *EGLImageKHR, *EGLStreamKHR, *EGLSyncKHR; typedef int EGLint;",
    "EGL/eglext.h": '#include "egl.h"',
    "vdpau/vdpau.h": "typedef unsigned VdpDevice, VdpVideoSurface, VdpOutputSurface; typedef int VdpGetProcAddress;",
}
_GRAPHICS_TYPEDEFS = ("cudaGLTypedefs.h", "cudaEGLTypedefs.h", "cudaVDPAUTypedefs.h")
_OF_THE_PROFILER = {"cuProfilerInitialize", "cuProfilerStart", "cuProfilerStop"}  # their header is not in the wheels

# What CUDA 12 has no name for yet.
_BROUGHT_BY_13 = {
    "CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER",
    "CUDA_ERROR_FABRIC_NOT_READY",
    "CUDA_ERROR_GRAPH_RECAPTURE_FAILURE",
    "CUDA_ERROR_INSUFFICIENT_LOADER_VERSION",
    "CUDA_ERROR_MULTICAST_RESOURCE_FULL",
    "CUDA_ERROR_STREAM_DETACHED",
    "CU_AD_FORMAT_UINT16_PLANAR_420",
    "CU_AD_FORMAT_UINT16_PLANAR_422",
    "CU_AD_FORMAT_UINT16_PLANAR_444",
    "CU_AD_FORMAT_UINT16_SEMIPLANAR_420",
    "CU_AD_FORMAT_UINT16_SEMIPLANAR_422",
    "CU_AD_FORMAT_UINT16_SEMIPLANAR_444",
    "CU_AD_FORMAT_UINT8_PACKED_422",
    "CU_AD_FORMAT_UINT8_PACKED_444",
    "CU_AD_FORMAT_UINT8_PLANAR_420",
    "CU_AD_FORMAT_UINT8_PLANAR_422",
    "CU_AD_FORMAT_UINT8_PLANAR_444",
    "CU_AD_FORMAT_UINT8_SEMIPLANAR_420",
    "CU_AD_FORMAT_UINT8_SEMIPLANAR_422",
    "CU_AD_FORMAT_UINT8_SEMIPLANAR_444",
    "CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED",
    "CU_FUNC_ATTRIBUTE_DEVICE_NODE_UPDATE_SUPPORTED",
    "CU_FUNC_ATTRIBUTE_SHARED_MEMORY_MODE",
    "CU_GRAPH_NODE_TYPE_EXTERNAL_ENGINE",
    "CU_GRAPH_NODE_TYPE_FABRIC_CPY_BATCH",
    "CU_GRAPH_NODE_TYPE_MEMCPY_BATCH",
    "CU_LIMIT_PER_BLOCK_MEMORY_SIZE",
    "CU_MEMPOOL_ATTR_ALLOCATION_TYPE",
    "CU_MEMPOOL_ATTR_EXPORT_HANDLE_TYPES",
    "CU_MEMPOOL_ATTR_HW_DECOMPRESS_ENABLED",
    "CU_MEMPOOL_ATTR_LOCALITY_DOMAIN_ID",
    "CU_MEMPOOL_ATTR_LOCATION_ID",
    "CU_MEMPOOL_ATTR_LOCATION_TYPE",
    "CU_MEMPOOL_ATTR_MAX_POOL_SIZE",
    "CU_MEM_ALLOCATION_TYPE_MANAGED",
    "CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN",
    "CU_MEM_LOCATION_TYPE_INVISIBLE",
    "CU_MEM_LOCATION_TYPE_NONE",
    "CU_POINTER_ATTRIBUTE_LOCALITY_DOMAIN_ORDINAL",
    "CUlogicalEndpointId",
    "CUgraphRecaptureCallback",
}


def _include(major: int) -> Path:
    """From the wheels nvidia-cuda-runtime-cu12 and nvidia-cuda-runtime of the dev group."""
    directory = Path(sysconfig.get_paths()["purelib"]) / _WHEELS[major]
    found = (directory / "cuda.h").is_file() and (directory / "cudaTypedefs.h").is_file()
    assert found, f"the wheel with the headers of CUDA {major} is not installed: run scripts/setup"
    return directory


def _release(major: int) -> int:
    found = re.search(r"^#define CUDA_VERSION (\d+)", (_include(major) / "cuda.h").read_text(), flags=re.MULTILINE)
    assert found
    assert int(found[1]) // 1000 == major
    return int(found[1])


def _compile(source: str, *flags: str) -> subprocess.CompletedProcess[str]:
    command = ["gcc", "-std=c11", "-x", "c", *flags, "-"]
    return subprocess.run(command, input=source, capture_output=True, text=True, check=False, timeout=50)


def _preprocessed(major: int) -> str:
    done = _compile("#include <cudaTypedefs.h>\n", "-E", "-P", "-dD", _INTERNAL, f"-I{_include(major)}")
    assert done.returncode == 0, done.stderr
    return done.stdout


def _layout(header: Path, wanted: Iterable[str], directory: Path) -> list[str]:
    (directory / "cuda_layout.inc").write_text("\n".join(wanted))
    program = directory / "layout"
    flags = ["-std=c11", "-Wall", "-Werror", _INTERNAL, f"-I{header}", f"-I{directory}"]
    subprocess.run(["gcc", *flags, "-o", str(program), str(_LAYOUT)], check=True, timeout=50)
    return subprocess.run([program], capture_output=True, text=True, check=True, timeout=50).stdout.splitlines()


def test_the_header_stands_alone() -> None:
    done = _compile("#include <cuda.h>\n", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{OURS}")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("major", sorted(_WHEELS))
def test_sizes_offsets_and_numbers_are_those_of_the_real_header(major: int, tmp_path: Path) -> None:
    known = set(re.findall(r"\bCU\w+", _preprocessed(major)))
    unknown = {name for name in (*constants(), *types()) if name not in known}
    assert unknown == (_BROUGHT_BY_13 if major == 12 else set())
    wanted = [
        *(f"T({name})" for name in types() if name not in unknown),
        *(f"F({name}, {member})" for name, member in members()),
        *(f"N({name})" for name in constants() if name not in unknown),
    ]
    assert len(wanted) > 500
    assert _layout(OURS, wanted, tmp_path) == _layout(_include(major), wanted, tmp_path)


def _assertions(row: Row) -> str:
    """Both names of a function, the exported one and the one of its version, are of the row's type."""
    return "".join(
        f'_Static_assert(__builtin_types_compatible_p({real}, {ours}), "{row.symbol}");\n'
        for real, ours in (
            (f"__typeof__({row.symbol})", f"CUresult {row.parameters}"),
            (row.typedef, f"CUresult (*) {row.parameters}"),
        )
    )


@pytest.mark.parametrize("major", sorted(_WHEELS))
def test_every_function_has_the_real_signature_and_version(major: int) -> None:
    """The real headers alone give the types here: a symbol or a version that they do not declare does not compile."""
    compared = [row for row in rows() if row.version <= _release(major)]
    assert len(compared) > 270
    source = "#include <cudaTypedefs.h>\n" + "".join(map(_assertions, compared))
    done = _compile(source, _INTERNAL, f"-I{_include(major)}", "-fsyntax-only")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("release", WHEELS)
def test_every_function_has_the_signature_of_each_release(release: str) -> None:
    """Its headers are fetched; with them the committed list of its functions is compared too."""
    include = fetch(release)
    names = declared(include)
    assert names == listed()[release], "run `python -m tests.library.cuda_releases`"
    compared = [row for row in rows() if row.symbol in names]
    assert len(compared) > 250
    source = "#include <cudaTypedefs.h>\n" + "".join(map(_assertions, compared))
    done = _compile(source, _INTERNAL, f"-I{include}", "-fsyntax-only")
    assert done.returncode == 0, done.stderr


def test_cuda_13_knows_every_function() -> None:
    assert [row.symbol for row in rows() if row.version > _release(13)] == []


@pytest.mark.parametrize("major", sorted(_WHEELS))
def test_no_version_of_a_function_is_missing_but_those_of_32_bits(major: int) -> None:
    """A newer one that vcuda does not know would be answered by an older one of another signature."""
    listed = re.findall(r"\*\s*(PFN_(\w+?)_v\d+(?:_pt[sd][sz])?)\)", _preprocessed(major))
    ours = {row.base for row in rows()}
    assert {name for name, base in listed if base in ours} - {row.typedef for row in rows()} == _LEFT_OUT


def test_a_symbol_is_its_base_with_suffixes_that_rise_with_the_version() -> None:
    by_base: defaultdict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for row in (*rows(), *unsupported()):
        assert row.stream == ("T" if row.thread else "L"), row.symbol
        suffix = re.fullmatch(rf"{row.base}(?:_v(\d+))?{row.thread}", row.symbol)
        assert suffix, row.symbol
        by_base[row.base, row.thread].append((row.version, int(suffix[1] or 1)))
    for base, versions in by_base.items():
        assert [number for _, number in sorted(versions)] == sorted(number for _, number in versions), base
        assert len({version for version, _ in versions}) == len(versions), base


def test_no_symbol_is_listed_twice() -> None:
    symbols = [row.symbol for row in (*rows(), *unsupported())]
    assert len(symbols) == len(set(symbols))


def test_the_emulator_exports_every_function_of_the_newest_headers() -> None:
    """A client that looks up all of them, as the CUDA runtime does, finds them: emulated, or said to be unsupported."""
    real = frozenset().union(*(declared(_include(major)) for major in _WHEELS))
    assert len(real) > 700
    assert {row.symbol for row in (*rows(), *unsupported())} - _OF_THE_PROFILER == real


def _typedefs(major: int, directory: Path) -> set[str]:
    """Of all driver functions of one release, those of graphics interfaces too."""
    for name, text in _GRAPHICS.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(text)
    source = "".join(f"#include <{name}>\n" for name in ("cudaTypedefs.h", *_GRAPHICS_TYPEDEFS))
    done = _compile(source, "-E", "-P", _INTERNAL, f"-I{_include(major)}", f"-I{directory}")
    assert done.returncode == 0, done.stderr
    return set(re.findall(r"\*\s*(PFN_\w+)\)", done.stdout))


def test_the_versions_of_unsupported_functions_are_the_real_ones(tmp_path: Path) -> None:
    typedefs = set().union(*(_typedefs(major, tmp_path) for major in _WHEELS))
    listed = {row.typedef for row in unsupported() if row.symbol not in _OF_THE_PROFILER}
    assert len(listed) > 250
    assert listed - typedefs == set()
