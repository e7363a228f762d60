"""Which of the libraries found belong to the driver that runs."""

from collections.abc import Sequence

from deviceplugin.container.driver_mirror.search import DriverLibrary, choose, driver_version
from tests.container.driver_mirror.makers import library


def chosen(libraries: Sequence[DriverLibrary], loaded: str = "580.65.06") -> list[str]:
    return [str(each.source.path) for each in choose(libraries, loaded=loaded)]


OLD_AND_NEW = (
    library("libcuda.so.590.10", "libcuda.so.1"),
    library("libcuda.so.580.65.06", "libcuda.so.1"),
    library("libnvidia-glcore.so.590.10", "libnvidia-glcore.so.590.10"),
    library("libnvidia-glcore.so.580.65.06", "libnvidia-glcore.so.580.65.06"),
    library("libnvidia-egl-wayland.so.1.1.19", "libnvidia-egl-wayland.so.1"),
)


def test_only_files_of_one_version_are_taken_the_loaded_one_if_it_is_there() -> None:
    """The old one, the new one, the newest where nobody knows, and where the loaded one has no files."""
    versions = {"580.65.06": "580.65.06", "590.10": "590.10", "": "590.10", "570.1": "590.10"}
    assert {loaded: driver_version(OLD_AND_NEW, loaded=loaded) for loaded in versions} == versions
    assert {loaded: chosen(OLD_AND_NEW, loaded) for loaded in versions} == {
        loaded: [
            f"/usr/lib64/libcuda.so.{version}",
            f"/usr/lib64/libnvidia-glcore.so.{version}",
            "/usr/lib64/libnvidia-egl-wayland.so.1.1.19",
        ]
        for loaded, version in versions.items()
    }


def test_a_leftover_of_another_driver_is_left_out_even_alone() -> None:
    leftover = library("libnvidia-ifr.so.460.32.03", "libnvidia-ifr.so.1")
    assert chosen([library("libcuda.so.580.65.06", "libcuda.so.1"), leftover]) == ["/usr/lib64/libcuda.so.580.65.06"]


def test_a_library_of_the_version_comes_before_a_nameless_one_that_the_loader_would_take() -> None:
    stray = library("libcuda.so.1", "libcuda.so.1", at="/usr/local/lib")
    assert chosen([stray, library("libcuda.so.580.65.06", "libcuda.so.1")]) == ["/usr/lib64/libcuda.so.580.65.06"]
    assert chosen([stray], "") == ["/usr/local/lib/libcuda.so.1"]


def test_forward_compatibility_packages_do_not_win_over_the_driver() -> None:
    compat = library("libcuda.so.590.10", "libcuda.so.1", at="/usr/local/cuda/compat")
    assert chosen([compat, library("libcuda.so.580.65.06", "libcuda.so.1")]) == ["/usr/lib64/libcuda.so.580.65.06"]


def test_of_two_with_one_soname_the_loaders_first_stays_for_each_word_size() -> None:
    first, second = (library("libGLX.so.0.0.0", "libGLX.so.0", at=at) for at in ("/usr/lib64", "/opt/lib64"))
    narrow = library("libGLX.so.0.0.0", "libGLX.so.0", at="/usr/lib", bits=32)
    assert chosen([first, second, narrow]) == ["/usr/lib64/libGLX.so.0.0.0", "/usr/lib/libGLX.so.0.0.0"]


def test_of_names_shared_with_mesa_only_nvidias_are_taken() -> None:
    names = ("libGL.so.1.7.0", "libEGL.so.1.1.0", "libGLESv2.so.2.1.0", "libGLESv1_CM.so.1.2.0")
    taken = {
        (): False,
        ("libdrm.so.2", "libglapi.so.0"): False,  # Mesa's
        ("libGLdispatch.so.0", "libc.so.6"): True,  # libglvnd's
        ("libnvidia-glcore.so.580.65.06",): True,
        ("libnvidia-eglcore.so.580.65.06",): True,
    }
    found = {(name, needed): bool(chosen([library(name, name, needed=needed)])) for name in names for needed in taken}
    assert found == {(name, needed): taken[needed] for name, needed in found}


def test_mesa_in_front_does_not_hide_libglvnd() -> None:
    mesa = library("libGL.so.1.2.0", "libGL.so.1", needed=("libglapi.so.0",))
    glvnd = library("libGL.so.1.7.0", "libGL.so.1", at="/usr/lib64/glvnd", needed=("libGLdispatch.so.0",))
    assert chosen([mesa, glvnd]) == ["/usr/lib64/glvnd/libGL.so.1.7.0"]


TLS = "libnvidia-tls.so.580.65.06"


def test_thread_local_storage_is_taken_for_todays_kernels() -> None:
    places: dict[tuple[tuple[int, int, int] | None, ...], str] = {
        ((2, 3, 99), None): "a",
        (None, (2, 3, 99)): "b",
        ((2, 2, 5), (2, 3, 99)): "b",
        (None, None): "a",
        ((2, 2, 5),): "a",
    }
    found = {
        kernels: chosen([library(TLS, TLS, at=f"/{at}", abi=abi) for at, abi in zip("ab", kernels, strict=False)])
        for kernels in places
    }
    assert found == {kernels: [f"/{place}/{TLS}"] for kernels, place in places.items()}
