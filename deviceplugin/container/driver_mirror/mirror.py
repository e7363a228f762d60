"""The driver mirror as the agent uses it: reads the driver and vcuda's library, keeps a tree of both for containers.

In: the paths, the components, and which driver version is loaded. Out: `<base>/nvidia` and `<base>/origin`, always
mountable, and their state. `refresh` is cheap where nothing changed (some dozens of stats) and may take seconds where
files must be copied, so it runs in a thread. One call at a time: `refresh` and `collect` alternate. What somebody
removed from the mirror is made again by the next `refresh`, and until then `why_unusable` says that it is missing.
"""

import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import msgspec

from deviceplugin.container.driver_mirror.components import (
    CUDA,
    CUDA_FRONT,
    NVML,
    SHARED,
    WHOLE,
    Components,
    find_interposers,
    interposer_paths,
)
from deviceplugin.container.driver_mirror.elf import Machine
from deviceplugin.container.driver_mirror.plan import (
    EMPTY,
    LIBRARIES,
    PROGRAMS,
    WHOLE_FLAVOUR,
    Chosen,
    FileEntry,
    MirrorPlan,
    make_plan,
)
from deviceplugin.container.driver_mirror.search import (
    DriverLibrary,
    Kept,
    choose,
    driver_version,
    find_libraries,
    find_programs,
    identity_of,
)
from deviceplugin.container.driver_mirror.trees import Manifest, Trees, read_manifest
from deviceplugin.driver_root import CACHE, LIBRARY_DIRECTORIES, PROGRAM_DIRECTORIES, DriverRoot


class MirrorOptions(msgspec.Struct, frozen=True):
    """`root` is where the node's driver is found, `library` the directory of our objects."""

    root: Path
    library: Path
    machine: Machine
    shared: Components = SHARED
    whole: Components = WHOLE


class MirrorState(msgspec.Struct, frozen=True):
    """What containers get now. `refusal` says why shares cannot start; empty if they can."""

    driver: str = ""
    missing: tuple[str, ...] = ()
    refusal: str = EMPTY.refusal


class MirrorUpdate(msgspec.Struct, frozen=True):
    """What a refresh found; `changed`: new containers get other trees than before."""

    state: MirrorState
    changed: bool
    trouble: tuple[str, ...] = ()


class _Seen(msgspec.Struct, frozen=True):
    """What a plan was made of: places that may bring something new, and the files that are in it."""

    places: tuple[object, ...] = ()
    files: Mapping[Path, str] = msgspec.field(default_factory=dict)


class DriverMirror:
    """One mirror; `loaded` returns the version of the kernel's driver, empty where it is unknown."""

    def __init__(self, base: Path, options: MirrorOptions, *, loaded: Callable[[], str]) -> None:
        self._options = options
        self._root = DriverRoot(options.root)
        self._loaded = loaded
        self._base = base
        self._trees = Trees(base)
        self._is_lost = False
        self._seen: _Seen | None = None
        self._stopped = threading.Event()
        self.state = MirrorState()

    def open(self) -> None:
        """Once at start: both flavours can be mounted, with what was there before; raises ContainerError."""
        self._trees.open()
        manifest = self._manifest()
        self.state = MirrorState(manifest.driver, manifest.missing, manifest.refusal)

    def refresh(self) -> MirrorUpdate | None:
        """Rebuilds what has changed or is missing; None if nothing did since the last call.

        Raises ContainerError; the trees are unchanged then.
        """
        if not self._trees.are_whole(every_file=True):
            self._is_lost = True
            self._trees.open()
        loaded = self._loaded()
        places = self._places(loaded)
        seen = self._seen if not self._is_lost else None
        if seen is not None and seen.places == places and _are_same(seen.files):
            return None
        plan, trouble = self._plan(loaded)
        changed = self._trees.adopt(plan, stopped=self._stopped.is_set)
        self.state = MirrorState(plan.driver, plan.missing, plan.refusal)
        self._seen = _Seen(places, _driver_files(plan))
        if self._is_lost:
            self._is_lost = False
            trouble = (f"files of the driver mirror {self._base} were missing and have been made again", *trouble)
        return MirrorUpdate(self.state, changed, trouble)

    def why_unusable(self, *, share: bool) -> str:
        """Why a container that starts now would lack its driver, or a share its limits; empty if it would not."""
        if share and self.state.refusal:
            return self.state.refusal
        if not self._is_lost and self._trees.are_whole():
            return ""
        return (
            f"files of the driver mirror {self._base} are missing on the node, so the container would start without "
            "its driver and without its limits; the agent makes them again soon, and kubelet tries again"
        )

    def stop(self) -> None:
        """From another thread: a refresh that is building stops soon."""
        self._stopped.set()

    def collect(self, living: Collection[str]) -> tuple[str, ...]:
        """Removes trees that no container can be using; returns their names.

        `living` are the ids of all grants, taken after the last refresh.
        """
        return self._trees.collect(living)

    def _manifest(self) -> Manifest:
        current = self._trees.current
        return (read_manifest(current) if current is not None else None) or Manifest(refusal=EMPTY.refusal)

    def _plan(self, loaded: str) -> tuple[MirrorPlan, tuple[str, ...]]:
        options, kept = self._options, self._kept(loaded)
        prefixes = (CUDA, NVML, *options.shared.libraries, *options.whole.libraries)
        finding = find_libraries(self._root, prefixes, options.machine, loaded=loaded, kept=kept)
        libraries = choose(finding.libraries, loaded=loaded)
        version = driver_version(libraries, loaded=loaded)
        fitting = kept if kept is not None and not _is_installed(loaded, finding.libraries, kept) else None
        names = dict.fromkeys((*options.shared.programs, *options.whole.programs))
        programs = find_programs(self._root, names, kept=fitting)
        interposers = find_interposers(options.library, options.machine)
        chosen = Chosen(libraries, programs, interposers, driver=version, root=options.root)
        plan = make_plan(chosen, shared=options.shared, whole=options.whole)
        return plan, (*finding.trouble, *_mismatch(version, loaded))

    def _kept(self, loaded: str) -> Kept | None:
        """The current tree, where it is of the version that is loaded."""
        tree = self._trees.current
        if tree is None or not loaded or self._manifest().driver != loaded:
            return None
        origin = tree.resolve() / WHOLE_FLAVOUR
        return Kept(loaded, tuple(origin / part for part in LIBRARIES.values()), origin / PROGRAMS)

    def _places(self, loaded: str) -> tuple[object, ...]:
        """Where something new would show: the loader's cache, directories of the driver's files, our objects."""
        cache = self._root.resolve(CACHE)
        directories = (self._root.resolve(each) for each in (*LIBRARY_DIRECTORIES, *PROGRAM_DIRECTORIES))
        return (
            loaded,
            identity_of(cache) if cache is not None else "",
            *(_directory_identity(each) if each is not None else () for each in directories),
            *(identity_of(each) for each in interposer_paths(self._options.library)),
        )


def _driver_files(plan: MirrorPlan) -> Mapping[Path, str]:
    entries = (each for each in plan.entries.values() if isinstance(each, FileEntry) and not each.is_interposer)
    return {each.source: each.identity for each in entries}


def _are_same(files: Mapping[Path, str]) -> bool:
    return all(identity_of(path) == identity for path, identity in files.items())


def _directory_identity(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_ino, found.st_mtime_ns


def _is_installed(loaded: str, libraries: Collection[DriverLibrary], kept: Kept) -> bool:
    """Whether the node's own libcuda.so.1 leads to the loaded version still, and so its programs fit too."""
    own = (each for each in libraries if each.source.path.parent not in kept.libraries)
    return any(CUDA_FRONT in each.names and each.version == loaded for each in own)


def _mismatch(version: str, loaded: str) -> tuple[str, ...]:
    if not loaded or not version or version == loaded:
        return ()
    sentence = (
        f"the driver's libraries are of version {version} and the loaded kernel module is of {loaded}: no program can "
        "use a GPU before the module is loaded again or the node rebooted"
    )
    return (sentence,)
