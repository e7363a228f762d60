"""The questions that are asked of one GPU, each typed, each one NVML call.

In: an `Nvml` and a GPU's index or UUID. Out: plain values; None if the driver does not say. Not here: which
questions make a GPU known (`discovery`) or show that it is well (`nvml_session`). Invariants: a handle is used only in
the generation of NVML in which it was made; a statistic that cannot be read is no error of the GPU.
"""

import ctypes

import msgspec
import structlog

from deviceplugin.errors import NvmlCallError
from deviceplugin.hardware.health import Condition, Fabric
from deviceplugin.hardware.nvml import GONE, STALE, Answer, Nvml, Status, Subject
from deviceplugin.model.gpu import ComputeMode, Driver, GpuUuid
from deviceplugin.model.topology import Level

_log = structlog.get_logger("vcuda.hardware")

_COMPUTE_MODES = {
    0: ComputeMode.DEFAULT,
    1: ComputeMode.EXCLUSIVE_PROCESS,  # exclusive thread: gone from drivers since CUDA 8, the same to us
    2: ComputeMode.PROHIBITED,
    3: ComputeMode.EXCLUSIVE_PROCESS,
}
_LEVELS = {0: Level.INTERNAL, 10: Level.PIX, 20: Level.PXB, 30: Level.PHB, 40: Level.NODE, 50: Level.SYS}
_NODE_SCOPE = 0
_NODE_WORDS = 16  # 1,024 NUMA nodes, as many as Linux has
_MEMORY_FORM_2 = 0x2000028  # nvmlMemory_v2: the version and the size of the structure
_MOST_LINKS = 36
_P2P_NVLINK = 2  # nvmlGpuP2PCapsIndex_t
_SWITCH = 2  # nvmlIntNvLinkDeviceType_t
_FIELD_RECOVERY_ACTION = 230


class NvLinkPeer(msgspec.Struct, frozen=True):
    """The far end of one NVLink; `is_switch` is None if the driver does not say."""

    bus_id: str
    is_switch: bool | None


class ProcessLoad(msgspec.Struct, frozen=True):
    """How busy a process kept the SMs; the time is the driver's, in microseconds since the epoch."""

    pid: int
    timestamp_us: int
    sm_percent: int


def driver_of(nvml: Nvml) -> Driver:
    """Versions; CUDA is what the driver can run at most, (0, 0) where it does not say."""
    cuda = int(_of_system(nvml, "nvmlSystemGetCudaDriverVersion") or 0)
    version = str(nvml.required("nvmlSystemGetDriverVersion"))
    return Driver(version=version, cuda=(cuda // 1000, cuda % 1000 // 10))


def count(nvml: Nvml) -> int:
    return int(nvml.required("nvmlDeviceGetCount"))


def is_locked(nvml: Nvml) -> bool | None:
    """Whether confidential computing is on and the GPUs accept no work yet; None if the driver does not say."""
    state = _of_system(nvml, "nvmlSystemGetConfComputeState")
    if state is None:
        return None
    ready = _of_system(nvml, "nvmlSystemGetConfComputeGpusReadyState") if state.ccFeature else 1
    return None if ready is None else int(ready) == 0


def _of_system(nvml: Nvml, function: str) -> Answer:
    """None if the driver does not say or fails to: no such question may cost the node its GPUs."""
    try:
        return nvml.optional(function)
    except NvmlCallError as error:
        if error.code in STALE:
            raise
        return None


class Device:
    """One GPU under one handle."""

    def __init__(self, nvml: Nvml, handle: Answer, index: int) -> None:
        self.index = index
        self.about = Subject(index)
        self.handle = handle
        self._nvml = nvml
        self._generation = nvml.generation
        self._failing: set[str] = set()

    @classmethod
    def at(cls, nvml: Nvml, index: int) -> "Device":
        return cls(nvml, nvml.required("nvmlDeviceGetHandleByIndex", index, about=Subject(index)), index)

    @property
    def address(self) -> int:
        """The handle's value, by which an event names its GPU."""
        return ctypes.cast(self.handle, ctypes.c_void_p).value or 0

    def uuid(self) -> GpuUuid:
        uuid = GpuUuid(str(self._ask("nvmlDeviceGetUUID")))
        self.about = Subject(self.index, uuid)
        return uuid

    def name(self) -> str:
        return str(self._ask("nvmlDeviceGetName"))

    def minor(self) -> int:
        """N of /dev/nvidiaN."""
        return int(self._ask("nvmlDeviceGetMinorNumber"))

    def memory(self) -> tuple[int, int]:
        """Bytes that applications can have, and of them in use.

        What the driver keeps for itself is in neither. Before driver 510 NVML does not tell it: it is in both.
        """
        info = self._may("nvmlDeviceGetMemoryInfo", _MEMORY_FORM_2, form="_v2")
        if info is not None:
            return int(info.total) - int(info.reserved), int(info.used)
        try:
            info = self._ask("nvmlDeviceGetMemoryInfo")
        except NvmlCallError as error:
            if error.code != Status.NOT_SUPPORTED:
                raise
            raise NvmlCallError(
                f"{self.about} cannot be shared: NVML reports no memory for it, because it uses the memory of the "
                "host, as in GB10 and Jetson; use NVIDIA's device plugin on this node",
                code=error.code,
                said="NVML reports no memory for it",
            ) from None
        return int(info.total), int(info.used)

    def bus_id(self) -> str:
        return str(self._ask("nvmlDeviceGetPciInfo").busId).upper()

    def compute_mode(self) -> ComputeMode:
        return _COMPUTE_MODES.get(self._may("nvmlDeviceGetComputeMode") or 0, ComputeMode.DEFAULT)

    def mig_enabled(self) -> bool:
        current, _pending = self._may("nvmlDeviceGetMigMode") or (0, 0)
        return int(current) == 1

    def memory_affinity(self) -> int | None:
        """The NUMA node whose memory is near; None if there are several or none."""
        words = self._statistic("nvmlDeviceGetMemoryAffinity", _NODE_WORDS, _NODE_SCOPE) or ()
        nodes = [64 * at + bit for at, word in enumerate(words) for bit in range(64) if word >> bit & 1]
        return nodes[0] if len(nodes) == 1 else None

    def numa_node(self) -> int | None:
        node = self._statistic("nvmlDeviceGetNumaNodeId")
        return None if node is None or int(node) < 0 else int(node)

    def ancestor(self, other: "Device") -> Level | None:
        """The PCIe level that joins both; None if the driver does not say."""
        level = self._may("nvmlDeviceGetTopologyCommonAncestor", other.handle)
        return None if level is None else _LEVELS.get(int(level))

    def nvlink_peers(self) -> tuple[NvLinkPeer, ...]:
        """What is at the far end of every link that is up."""
        peers: list[NvLinkPeer] = []
        for link in range(_MOST_LINKS):
            try:
                peer = self._nvlink_peer(link)
            except NvmlCallError as error:
                if error.code == Status.INVALID_ARGUMENT:  # the first link number that this GPU does not have
                    break
                raise
            if peer is not None:
                peers.append(peer)
        return tuple(peers)

    def reaches_by_nvlink(self, other: "Device") -> bool | None:
        """Whether peer-to-peer traffic of the two takes NVLink; not so while a fabric of switches is not set up."""
        status = self._may("nvmlDeviceGetP2PStatus", other.handle, _P2P_NVLINK)
        return None if status is None else int(status) == 0

    def _nvlink_peer(self, link: int) -> NvLinkPeer | None:
        if not self._may("nvmlDeviceGetNvLinkState", link):
            return None
        info = self._may("nvmlDeviceGetNvLinkRemotePciInfo", link)
        kind = self._may("nvmlDeviceGetNvLinkRemoteDeviceType", link)
        bus_id = "" if info is None else str(info.busId).upper()
        return NvLinkPeer(bus_id=bus_id, is_switch=None if kind is None else int(kind) == _SWITCH)

    def utilization(self) -> int:
        rates = self._statistic("nvmlDeviceGetUtilizationRates")
        return 0 if rates is None else min(100, int(rates.gpu))

    def processes(self) -> dict[int, int]:
        """Bytes by PID, 0 if NVML does not say: compute (MPS clients too) and graphics processes.

        NVML lists a process once for each of its contexts.
        """
        memory: dict[int, int] = {}
        for kind in ("Compute", "Graphics", "MPSCompute"):
            for found in self._processes(kind):
                memory[int(found.pid)] = max(memory.get(int(found.pid), 0), int(found.usedGpuMemory or 0))
        return memory

    def _processes(self, kind: str) -> Answer:
        """The third form came with driver 510; the unversioned names of pynvml refuse older drivers altogether."""
        found = self._statistic(f"nvmlDeviceGet{kind}RunningProcesses_v3")
        if found is None:
            found = self._statistic(f"nvmlDeviceGet{kind}RunningProcesses_v2")
        return found or ()

    def process_loads(self, since_us: int) -> tuple[ProcessLoad, ...]:
        """Readings newer than `since_us`; drivers are known to give ones of no process and above 100 as well."""
        found = self._statistic("nvmlDeviceGetProcessUtilization", since_us) or ()
        loads = (ProcessLoad(int(one.pid), int(one.timeStamp), int(one.smUtil)) for one in found)
        return tuple(load for load in loads if load.pid and load.sm_percent <= 100 and load.timestamp_us > since_us)

    def condition(self) -> Condition:
        """What the driver says about the GPU, as far as it does."""
        _corrected, _uncorrected, pending, failed = self._statistic("nvmlDeviceGetRemappedRows") or (None,) * 4
        return Condition(
            action=self.recovery_action(),
            remap_failed=None if failed is None else bool(failed),
            remap_pending=None if pending is None else bool(pending),
            fabric=self.fabric(),
        )

    def fabric(self) -> Fabric | None:
        """The NVLink fabric of machines with NVSwitches. The first form is older than the versioned one."""
        for form in ("V", ""):
            info = self._nvml.structure(f"c_nvmlGpuFabricInfo{form}_t")
            if self._statistic(f"nvmlDeviceGetGpuFabricInfo{form}", ctypes.byref(info)) is not None:
                return Fabric(state=int(info.state) & 0xFF, status=int(info.status))
        return None

    def recovery_action(self) -> int | None:
        """What the driver asks for before new work (0: nothing); None before driver 565."""
        values = self._statistic("nvmlDeviceGetFieldValues", [_FIELD_RECOVERY_ACTION])
        if not values or values[0].nvmlReturn != 0:
            return None
        return int(values[0].value.uiVal)

    def _ask(self, function: str, *arguments: object) -> Answer:
        """What vcuda cannot do without. A platform that lacks it has no fault, so no log of the kernel helps."""
        self._check_generation()
        try:
            return self._nvml.required(function, self.handle, *arguments, about=self.about)
        except NvmlCallError as error:
            if error.code != Status.NOT_SUPPORTED:
                raise
            raise NvmlCallError(
                f"{self.about} cannot be shared: {function} is not supported on this platform, as under WSL 2 "
                "(docs/compatibility.md); use NVIDIA's device plugin on this node",
                code=error.code,
                said=f"NVML does not support {function} on this platform",
            ) from None

    def _may(self, function: str, *arguments: object, form: str = "") -> Answer:
        self._check_generation()
        return self._nvml.optional(function, self.handle, *arguments, about=self.about, form=form)

    def _statistic(self, function: str, *arguments: object) -> Answer:
        """None, said once, if only this question fails; a GPU that can run nothing still raises."""
        try:
            answer = self._may(function, *arguments)
        except NvmlCallError as error:
            if error.code in STALE | GONE:
                raise
            if function not in self._failing:
                self._failing.add(function)
                _log.warning("gpu_statistic_failed", error=error.message)
            return None
        self._failing.discard(function)
        return answer

    def _check_generation(self) -> None:
        if self._generation != self._nvml.generation:
            raise NvmlCallError(
                f"{self.about} was asked under a handle from before NVML was opened again",
                code=Status.UNINITIALIZED,
                said="the handle is stale",
            )
