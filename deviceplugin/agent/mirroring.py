"""Keeps the driver mirror up to date and tells people what it found.

In: the mirror, and which grants live. Out: log lines and metrics for every change; nothing is raised, for an agent
whose disk is full still serves what it has. Looking happens in a thread, because files may have to be copied. Old trees
are collected right after a look with the grants of that moment: who is granted later mounts what is current by then.
"""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

import structlog

from deviceplugin.config.agent import DriverSettings
from deviceplugin.config.gpu_manager import VolumeConfig
from deviceplugin.container.driver_mirror.components import SHARED, WHOLE, Components
from deviceplugin.container.driver_mirror.elf import Machine
from deviceplugin.container.driver_mirror.mirror import DriverMirror, MirrorOptions, MirrorUpdate, loaded_version
from deviceplugin.container.driver_mirror.plan import SHARED_FLAVOUR, WHOLE_FLAVOUR
from deviceplugin.errors import ContainerError
from deviceplugin.observe.metrics import AgentMetrics

log = structlog.get_logger("vcuda.agent")
_AFTER_TROUBLE = 6  # periods


class Mirroring:
    """`look` once before kubelet may ask, then `run`; `living` is None until every grant is known."""

    def __init__(
        self,
        mirror: DriverMirror,
        metrics: AgentMetrics,
        *,
        living: Callable[[], Collection[str] | None],
        period_s: float,
    ) -> None:
        self._mirror = mirror
        self._metrics = metrics
        self._living = living
        self._period_s = period_s
        self._complaint = ""
        self._due = asyncio.Event()

    def soon(self) -> None:
        """The driver may be another one."""
        self._due.set()

    async def run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._period_s * (_AFTER_TROUBLE if self._complaint else 1)):
                    await self._due.wait()
            self._due.clear()
            await self.look()

    async def look(self) -> None:
        """Makes the mirror what it should be, as far as that can be done."""
        try:
            found = await asyncio.to_thread(self._mirror.refresh)
            living = self._living()
            gone = await asyncio.to_thread(self._mirror.collect, living) if living is not None else ()
        except asyncio.CancelledError:
            self._mirror.stop()
            raise
        except ContainerError as error:
            self._complain(error.message)
            return
        except Exception as error:  # what foreign hands put among the driver's files must not end the agent
            log.exception("looking at the driver failed; please report this line")
            self._complaint = repr(error)
            return
        self._complaint = ""
        if found is not None:
            self._tell(found)
        if gone:
            log.info("old driver mirrors removed", trees=list(gone))

    def _tell(self, found: MirrorUpdate) -> None:
        state = found.state
        self._metrics.mirrored(driver=state.driver, missing=state.missing, enforceable=not state.refusal)
        if found.changed:
            log.info("driver mirror built", driver=state.driver)
        for sentence in found.trouble:
            log.warning("driver mirror", cause=sentence)
        if state.missing:
            log.warning("the driver lacks libraries that containers need", libraries=list(state.missing))
        if state.refusal:
            log.error("shares do not start", cause=state.refusal)

    def _complain(self, message: str) -> None:
        if message != self._complaint:
            log.warning("the driver mirror stays as it is", cause=message)
        self._complaint = message


def driver_mirror(settings: DriverSettings, *, driver_version: Callable[[], str]) -> DriverMirror:
    """From settings; `driver_version` is asked where the kernel does not tell."""
    volumes = settings.volume_config
    options = MirrorOptions(
        root=settings.root,
        library=settings.library_path,
        machine=Machine.here(),
        shared=_components(volumes, SHARED_FLAVOUR, SHARED),
        whole=_components(volumes, WHOLE_FLAVOUR, WHOLE),
    )
    for sentence in _not_followed(volumes, settings.mirror_path):
        log.warning("--volume-config", cause=sentence)
    return DriverMirror(
        settings.mirror_path, options, loaded=lambda: loaded_version(settings.version_file) or driver_version()
    )


def _components(volumes: VolumeConfig, flavour: str, default: Components) -> Components:
    """A volume that the file does not have is made as without the file."""
    found = next((each for each in volumes.volumes if each.name == flavour), None)
    return Components(found.components.binaries, found.components.libraries) if found is not None else default


def _not_followed(volumes: VolumeConfig, mirror: Path) -> Iterable[str]:
    for volume in volumes.volumes:
        if volume.name not in (SHARED_FLAVOUR, WHOLE_FLAVOUR):
            yield f"volume {volume.name!r} is mounted by nobody; only {SHARED_FLAVOUR} and {WHOLE_FLAVOUR} are"
        elif Path(volume.base) != mirror:
            yield f"base {volume.base!r} of volume {volume.name} is not used; --driver-mirror-path is {mirror}"
