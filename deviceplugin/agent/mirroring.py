"""Keeps the driver mirror up to date and reports what it found.

In: the mirror, and the grants that exist. Out: log lines and metrics for every change. Nothing is raised, because an
agent with a full disk still serves what it has. The check runs in a thread, because files may have to be copied. Old
trees are removed right after a check with the grants of that moment: a later grant mounts the tree that is current
then.
"""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

import structlog

from deviceplugin.config.agent import DriverSettings, VolumeConfig
from deviceplugin.container.driver_mirror.components import SHARED, WHOLE, Components
from deviceplugin.container.driver_mirror.elf import Machine
from deviceplugin.container.driver_mirror.mirror import DriverMirror, MirrorOptions, MirrorUpdate
from deviceplugin.container.driver_mirror.plan import SHARED_FLAVOUR, WHOLE_FLAVOUR
from deviceplugin.errors import ContainerError
from deviceplugin.hardware.pci import loaded_version
from deviceplugin.observe.metrics import AgentMetrics

log = structlog.get_logger("vcuda.agent")
_AFTER_TROUBLE = 6  # periods


class Mirroring:
    """`look` once before kubelet may ask, then `run`; `living` returns None until every grant is known."""

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
        self._last_error = ""
        self._due = asyncio.Event()

    def soon(self) -> None:
        """The driver may have changed."""
        self._due.set()

    async def run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._period_s * (_AFTER_TROUBLE if self._last_error else 1)):
                    await self._due.wait()
            self._due.clear()
            await self.look()

    async def look(self) -> None:
        """Builds the mirror of the current driver, as far as possible."""
        try:
            found = await asyncio.to_thread(self._mirror.refresh)
            living = self._living()
            gone = await asyncio.to_thread(self._mirror.collect, living) if living is not None else ()
        except asyncio.CancelledError:
            self._mirror.stop()
            raise
        except ContainerError as error:
            self._log_once(error.message)
            return
        except Exception as error:  # a strange file in the driver's directories must not end the agent
            log.exception("driver_check_failed", action="please report this line")
            self._last_error = repr(error)
            return
        self._last_error = ""
        if found is not None:
            self._report(found)
        if gone:
            log.info("old_mirrors_removed", trees=list(gone))

    def _report(self, found: MirrorUpdate) -> None:
        state = found.state
        self._metrics.mirrored(driver=state.driver, missing=state.missing, enforceable=not state.refusal)
        if found.changed:
            log.info("mirror_built", driver=state.driver)
        for sentence in found.trouble:
            log.warning("mirror_incomplete", error=sentence)
        if state.missing:
            log.warning("driver_libraries_missing", libraries=list(state.missing))
        if state.refusal:
            log.error("shares_refused", error=state.refusal)

    def _log_once(self, message: str) -> None:
        if message != self._last_error:
            log.warning("mirror_update_failed", error=message)
        self._last_error = message


def driver_mirror(settings: DriverSettings, *, driver_version: Callable[[], str]) -> DriverMirror:
    """From settings; `driver_version` is used if the kernel does not show the version."""
    for sentence in _not_followed(settings.volume_config, settings.mirror_path):
        log.warning("volume_config_ignored", error=sentence)
    return DriverMirror(
        settings.mirror_path,
        mirror_options(settings),
        loaded=lambda: loaded_version(settings.version_file) or driver_version(),
    )


def mirror_options(settings: DriverSettings) -> MirrorOptions:
    volumes = settings.volume_config
    return MirrorOptions(
        root=settings.root,
        library=settings.library_path,
        machine=Machine.here(),
        shared=_components(volumes, SHARED_FLAVOUR, SHARED),
        whole=_components(volumes, WHOLE_FLAVOUR, WHOLE),
    )


def _components(volumes: VolumeConfig, flavour: str, default: Components) -> Components:
    """A volume that the file does not have gets the default content."""
    found = next((each for each in volumes.volumes if each.name == flavour), None)
    return Components(found.components.binaries, found.components.libraries) if found is not None else default


def _not_followed(volumes: VolumeConfig, mirror: Path) -> Iterable[str]:
    for volume in volumes.volumes:
        if volume.name not in (SHARED_FLAVOUR, WHOLE_FLAVOUR):
            yield f"volume {volume.name!r} is not mounted; only {SHARED_FLAVOUR} and {WHOLE_FLAVOUR} are"
        elif Path(volume.base) != mirror:
            yield f"base {volume.base!r} of volume {volume.name} is not used; --driver-mirror-path is {mirror}"
