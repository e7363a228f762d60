"""The GPUs of this node, as the agent uses them: one `Hardware` from start to stop.

In: `HardwareOptions`, everything that an operator or a test may set, with its default. Out: `inventory` and `samples`,
readable at any moment without waiting, and a call for each change. Not here: each of the things it puts together.
Invariants: a GPU that was once in the inventory stays, unhealthy if need be, unless another took its place; nothing
that the driver does, hanging included, blocks the event loop or ends the watch; while NVML is closed on request,
nothing of the driver is touched.

`Schedule` says when the GPUs are read next, and for what, by what each reading gave and which GPUs are lost. It is
pure: the clock is an argument. Events are due every second at most, samples every sample period, the survey of what
changes seldom every rescan period. NVML is opened again after a failure, and with growing intervals while a GPU is
lost: it may come back under a new handle only.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import msgspec
import structlog

from deviceplugin.backoff import Backoff, no_jitter
from deviceplugin.errors import DriverMissingError, GpuHangError, HardwareError, NvmlCallError
from deviceplugin.hardware import pci
from deviceplugin.hardware.health import RecoveryRules, XidPolicy
from deviceplugin.hardware.nvml import STALE, SYSTEM_ROOT, Nvml, NvmlLibrary
from deviceplugin.hardware.nvml_executor import NvmlExecutor
from deviceplugin.hardware.nvml_session import GpuSurvey, Sampler, Session
from deviceplugin.hardware.pci import ModuleTools, load_modules, missing_nodes
from deviceplugin.hardware.state import HardwareState, InventoryCache, InventoryChange, Remembered
from deviceplugin.model.gpu import NEWEST_CUDA, Driver, Gpu, GpuSample, GpuUuid, Inventory
from deviceplugin.structs import replace

OPEN_BUDGET_S = 60.0
"""Without persistence mode the first nvmlInit wakes every GPU, which takes seconds."""


class HardwareOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Periods and budgets are seconds; roots are for containers, which see the node's files below another directory."""

    library: Path | None = None
    driver_root: Path = SYSTEM_ROOT
    cache_path: Path | None = None
    device_root: Path = Path("/dev")
    sys_root: Path = Path("/sys")
    proc_root: Path = Path("/proc")
    sample_period_s: float = 1.0
    rescan_period_s: float = 10.0
    wait_for_driver: bool = False
    modules: ModuleTools = msgspec.field(default_factory=ModuleTools)
    xids: XidPolicy = msgspec.field(default_factory=XidPolicy)
    recovery: RecoveryRules = msgspec.field(default_factory=RecoveryRules)
    call_budget_s: float = 5.0
    open_budget_s: float = OPEN_BUDGET_S
    hang_s: float = 30.0
    """A driver that does not answer for so long makes every GPU unhealthy: a new pod would hang like the agent."""
    retry_first_s: float = 1.0
    retry_most_s: float = 60.0


_LISTEN_PERIOD_S = 1.0


class Due(msgspec.Struct, frozen=True):
    """What one reading is for."""

    listen: bool
    sample: bool
    survey: bool


class Schedule:
    """Moments are of the monotonic clock; 0 means at once."""

    def __init__(self, options: HardwareOptions) -> None:
        self._options = options
        self._listen_period = min(_LISTEN_PERIOD_S, options.sample_period_s)
        self._proved = False
        self._open_at = 0.0
        self._listen_at = 0.0
        self._sample_at = 0.0
        self._survey_at = 0.0
        self._retry = Backoff(first=options.retry_first_s, most=options.retry_most_s, jitter=no_jitter)
        self._search = Backoff(first=options.rescan_period_s, most=30 * options.rescan_period_s, jitter=no_jitter)
        self._deaf = Backoff(first=options.retry_first_s, most=options.retry_most_s, jitter=no_jitter)

    def must_open(self, now: float) -> bool:
        return now >= self._open_at

    def due(self, now: float) -> Due:
        return Due(listen=now >= self._listen_at, sample=now >= self._sample_at, survey=now >= self._survey_at)

    def pause(self, now: float, *, is_open: bool) -> float:
        moments = (self._open_at, self._listen_at, self._sample_at, self._survey_at) if is_open else (self._open_at,)
        return max(0.0, min(moments) - now)

    def opened(self, *, everything: bool) -> None:
        """NVML was opened; `everything` answers, so nothing needs to be searched for."""
        self._proved = False
        self._open_at = math.inf
        self._listen_at = self._sample_at = self._survey_at = 0.0
        if everything:
            self._search.reset()

    def answered(self, now: float, due: Due, *, deaf: bool, events: bool, lost: bool) -> None:
        """NVML answered; `lost`: some GPU did not, so NVML is opened again before long."""
        self._proved = True
        self._retry.reset()
        if deaf:
            self._listen_at = now + self._deaf.next()
        elif due.listen:
            self._listen_at = now + self._listen_period
            self._deaf.reset()
        if due.sample:
            self._sample_at = now + self._options.sample_period_s
        if due.survey:
            self._survey_at = now + self._options.rescan_period_s
        if events:
            self._survey_at = now + self._listen_period  # the driver's advice follows the event by a moment
        self._search_while(lost, now)

    def failed(self, now: float) -> float:
        """NVML could not be opened or asked: how long until it is tried again."""
        delay = self._retry.next()
        self._open_at = now + delay
        return delay

    def open_at_once(self) -> None:
        self._open_at = 0.0

    def went_stale(self) -> bool:
        """Handles are void: NVML is opened at once, but never twice without a good reading in between (False)."""
        if self._proved:
            self.open_at_once()
        return self._proved

    def open_in(self, now: float, seconds: float) -> None:
        self._open_at = now + seconds

    def _search_while(self, lost: bool, now: float) -> None:
        if not lost:
            self._search.reset()
            self._open_at = self._open_at if self._open_at == 0.0 else math.inf
        elif self._open_at == math.inf:
            self._open_at = now + self._search.next()


_log = structlog.get_logger("vcuda.hardware")

_STUCK_PERIOD_S = 1.0  # asking whether the thread came back costs nothing
_LOOKS, _LOOK_S = 30, 0.1


class Hardware:
    """Call `start` once, read, subscribe, and call `stop`."""

    def __init__(self, options: HardwareOptions) -> None:
        self._options = options
        self._executor = NvmlExecutor(Nvml(NvmlLibrary(path=options.library, root=options.driver_root)))
        self._cache = InventoryCache(options.cache_path, proc_root=options.proc_root)
        self._state = HardwareState(rules=options.recovery, xids=options.xids)
        self._sampler = Sampler(period_s=options.sample_period_s)
        self._schedule = Schedule(options)
        self._subscribers: list[Callable[[InventoryChange], None]] = []
        self._session: Session | None = None
        self._bound: frozenset[str] = frozenset()
        self._driver_left = False
        self._shall_close = False
        self._asked = asyncio.Event()
        self._said: set[str] = set()
        self._kept: Remembered | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def inventory(self) -> Inventory | None:
        """None before `start` has come back."""
        return self._state.inventory

    def located(self, gpu: Gpu) -> Gpu:
        """With the number under which /dev has it now.

        The kernel knows it before NVML is asked again: a driver that is loaded again may give other numbers.
        """
        now = pci.minor_now(self._options.proc_root, gpu.bus_id)
        return gpu if now in {None, gpu.minor} else replace(gpu, minor=now)

    async def settled(self) -> None:
        """Waits until the numbers of the GPUs are those of now; HardwareError if nobody says them in time.

        An agent that has just started may have them from the agent before, and a reload of the driver lies between.
        """
        for _ in range(_LOOKS):
            minors = (pci.minor_now(self._options.proc_root, gpu.bus_id) for gpu in self._state.gpus)
            if self._state.has_answered or None not in minors:
                return
            await asyncio.sleep(_LOOK_S)
        raise HardwareError(
            "the device nodes of the GPUs are not known: the NVIDIA driver has not answered since the agent started; "
            "see the agent's log; kubelet tries again"
        )

    @property
    def samples(self) -> Mapping[GpuUuid, GpuSample]:
        """The latest reading of each GPU that answers."""
        return self._state.samples

    @property
    def xids(self) -> Mapping[tuple[GpuUuid, str], int]:
        """How often each GPU raised each XID since the agent started."""
        return self._state.xids

    @property
    def critical_errors(self) -> Mapping[GpuUuid, int]:
        """How often each GPU raised an error that makes it unhealthy since the agent started."""
        return self._state.critical_errors

    @property
    def repairs_pending(self) -> frozenset[GpuUuid]:
        """The GPUs that remap a faulty row of their memory at the next reset."""
        return self._state.repairs_pending

    @property
    def nvml_closed(self) -> bool:
        """Whether NVML was closed on request, so that GPUs can be reset and the driver unloaded."""
        return self._state.nvml_closed

    def close_nvml(self, *, wanted: bool) -> None:
        """Comes back at once; `nvml_closed` says when it is done. Not wanted any more: NVML is opened again."""
        if wanted is not self._shall_close:
            self._shall_close = wanted
            self._asked.set()

    def subscribe(self, subscriber: Callable[[InventoryChange], None]) -> None:
        """Calls back on the loop after each change."""
        self._subscribers.append(subscriber)

    async def start(self) -> None:
        """Comes back with an inventory: at once if the cache has one, else when the driver has answered."""
        remembered = await asyncio.to_thread(self._cache.read)
        if remembered is not None:
            self._state.adopt(remembered)
            self._state.publish()
            self._shall_close = self._driver_left = remembered.nvml_closed
            _log.info("inventory_restored", gpus=len(remembered.inventory.gpus))
        else:
            await self._first_contact()
        self._task = asyncio.create_task(self._watch(), name="hardware")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
            await self._keep()
        await self._executor.close()

    async def _first_contact(self) -> None:
        backoff = Backoff(first=self._options.retry_first_s, most=self._options.retry_most_s, jitter=no_jitter)
        while True:
            if self._shall_close:
                await self._rest(math.inf)
                continue
            try:
                await self._open()
            except HardwareError as error:
                if not self._options.wait_for_driver and not isinstance(error, GpuHangError):
                    raise
                self._say("waiting_for_driver", error.message, topic=type(error).__name__)
                await self._rest(backoff.next())
            else:
                await self._safe_turn()  # a GPU that shall get no pods must not be offered before
                return

    async def _watch(self) -> None:
        while True:
            await self._safe_turn()
            is_idle = self._shall_close and self.nvml_closed
            pause = self._schedule.pause(time.monotonic(), is_open=self._session is not None)
            await self._rest(math.inf if is_idle else pause)

    async def _rest(self, seconds: float) -> None:
        """Until then, or until NVML shall be closed or opened."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if seconds == math.inf else seconds):
                await self._asked.wait()
        self._asked.clear()

    async def _safe_turn(self) -> None:
        try:
            await self._turn()
        except Exception:
            _log.exception("hardware_watch_failed")
            self._session = None
            self._schedule.failed(time.monotonic())

    async def _turn(self) -> None:
        try:
            if self._shall_close:
                await self._close()
                return
            if self._schedule.must_open(time.monotonic()):
                await self._open()
            if self._session is not None:
                await self._read(self._session)
        except HardwareError as error:
            await self._failed(error)

    async def _close(self) -> None:
        """Unmaps the library too: another driver may come, and a file in use would keep its directory mounted."""
        if self.nvml_closed:
            return
        self._session = None
        self._executor.require_all_threads("closing NVML")
        await self._executor.run(Nvml.forget_library, what="closing NVML", budget=self._options.open_budget_s)
        self._driver_left = True
        self._state.closed()
        self._schedule.open_at_once()
        _log.info("nvml_closed")
        await self._publish()

    async def _open(self) -> None:
        """Everything from the kernel modules to a discovery; without a driver it raises."""
        options = self._options
        previous, self._session = self._session, None
        await self._load_modules()
        begin = partial(
            Session.begin,
            known=self._state.inventory,
            sampler=self._sampler,
            sys_root=options.sys_root,
            new_library=self._driver_left,  # a mapped library keeps the old version
            hung=self._executor.hung.keys(),
            previous=previous,
        )
        bound = await asyncio.to_thread(pci.gpus_of_driver, options.sys_root)
        try:
            session = await self._executor.run(begin, what="discovering the GPUs", budget=options.open_budget_s)
        except HardwareError as error:
            self._driver_left |= isinstance(error, DriverMissingError) or _code(error) in STALE
            raise
        self._session, self._bound = session, bound
        for note in session.discovery.notes:
            self._say("discovery_note", note, topic=note)
        self._state.discovered(session.discovery, driver_reloaded=self._driver_left)
        self._driver_left = False
        self._schedule.opened(everything=session.discovery.is_complete)
        await self._publish()

    async def _read(self, session: Session) -> None:
        now = time.monotonic()
        due, hung = self._schedule.due(now), self._executor.hung
        for index, seconds in hung.items():
            if seconds > self._options.hang_s:
                self._gpu_hangs(session, index, for_certain=True)
        report = await self._executor.run(
            lambda _nvml: session.read(listen=due.listen, sample=due.sample, survey=due.survey, hung=hung),
            what="reading the GPUs",
            budget=self._options.call_budget_s,
        )
        self._state.apply(report, now=now)
        lacking = await self._look_for_nodes(load=due.survey)
        lost = self._state.lost_beside(hung) or not session.discovery.is_complete
        self._schedule.answered(now, due, deaf=bool(report.deaf), events=bool(report.events), lost=lost)
        if report.deaf:
            self._say("nvml_events_failed", report.deaf, topic="events")
        elif due.listen and not (lost or hung or lacking):
            self._said.clear()
        if report.survey is not None and await self._is_new_hardware(report.survey, session):
            self._schedule.open_at_once()
        await self._publish()

    async def _is_new_hardware(self, survey: GpuSurvey, session: Session) -> bool:
        bound = await asyncio.to_thread(pci.gpus_of_driver, self._options.sys_root)
        return bound != self._bound or survey.counted != session.discovery.counted

    def _gpu_hangs(self, session: Session, index: int, *, for_certain: bool) -> None:
        for uuid, device in session.discovery.devices.items():
            if device.index == index:
                self._state.gpu_hangs(uuid, for_certain=for_certain)

    async def _failed(self, error: HardwareError) -> None:
        """The driver as a whole fails, or hangs in a question about one GPU; then the others are read on."""
        now = time.monotonic()
        if isinstance(error, GpuHangError) and self._session is not None:
            self._gpu_hangs(self._session, error.index, for_certain=False)
            self._say("gpu_hangs", error.message, topic=f"GPU {error.index}")
            await self._publish()
            return
        was_open, self._session = self._session is not None, None
        self._driver_left |= _code(error) in STALE
        if was_open and _code(error) in STALE and self._schedule.went_stale():
            _log.info("nvml_reopened", error=error.message)
            return
        if isinstance(error, DriverMissingError | NvmlCallError):
            self._schedule.failed(now)
            self._state.driver_gone(_phrase(error))
        else:
            self._schedule.open_in(now, _STUCK_PERIOD_S)
        if self._executor.stuck_for > self._options.hang_s:
            self._state.driver_hangs()
        self._say("driver_failed", error.message, topic=type(error).__name__)
        await self._publish()

    async def _look_for_nodes(self, *, load: bool) -> bool:
        """Whether a device node is missing. Nobody but the agent may make it before a container needs it."""
        if load:
            await self._load_modules()
        gpus = self._state.gpus
        found = missing_nodes(self._options.device_root, (gpu.minor for gpu in gpus))
        missing = {gpu.uuid: found[gpu.minor] for gpu in gpus}
        self._state.lacks(missing)
        return any(missing.values())

    async def _load_modules(self) -> None:
        options = self._options
        outcome = await load_modules(
            options.modules, device_root=options.device_root, sys_root=options.sys_root, proc_root=options.proc_root
        )
        if outcome is not None:
            event = "kernel_modules_loaded" if outcome.loaded else "kernel_modules_failed"
            self._say(event, outcome.sentence, topic="modules")

    async def _publish(self) -> None:
        """Makes the last step visible: to readers, to subscribers, to the next start."""
        change = self._state.publish()
        if change is not None:
            _report(change)
            for subscriber in self._subscribers:
                subscriber(change)
        await self._keep()

    async def _keep(self) -> None:
        remembered = self._state.remembered()
        if remembered is not None and remembered != self._kept:
            await asyncio.to_thread(self._cache.write, remembered)
            self._kept = remembered

    def _say(self, event: str, error: str, *, topic: str) -> None:
        """Logs each topic once until all is well again: a driver that stays away must not fill the log."""
        if topic not in self._said:
            self._said.add(topic)
            _log.warning(event, error=error)


def _code(error: HardwareError) -> int:
    return error.code if isinstance(error, NvmlCallError) else 0


def _phrase(error: DriverMissingError | NvmlCallError) -> str:
    return error.said if isinstance(error, NvmlCallError) else "there is no NVIDIA driver"


def _newer(driver: Driver) -> str:
    has, knows = (".".join(map(str, version)) for version in (driver.cuda, NEWEST_CUDA))
    return (
        f"driver {driver.version} has CUDA {has}, and vcuda's library knows the functions up to CUDA {knows}: what "
        "newer ones allocate or launch is not limited in shares; install a vcuda that knows them"
    )


def _report(change: InventoryChange) -> None:
    if change.gpus_changed:
        inventory = change.inventory
        models = sorted({gpu.model for gpu in inventory.gpus})
        _log.info("gpus_discovered", gpus=len(inventory.gpus), models=models, driver=inventory.driver.version)
        if not inventory.driver.is_known:
            _log.warning("driver_newer_than_vcuda", error=_newer(inventory.driver))
    for one in change.health:
        if one.new.healthy:
            _log.info("gpu_healthy", gpu=one.uuid, was=one.old.reason)
        else:
            _log.warning("gpu_unhealthy", gpu=one.uuid, error=one.new.reason)
