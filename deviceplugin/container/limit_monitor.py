"""Whether a container keeps to its share: the driver's view of it against its limits and our library's account.

In: one reading each second. Out: the breaches that have lasted longer than the driver's readings may lag. Pure except
for its memory of earlier readings. The library is cooperative: a static binary, another libcuda in the container or a
program that calls the driver by ioctl bypasses it; only the driver's list of processes shows such a process.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from deviceplugin.model.gpu import Gpu, GpuUuid
from deviceplugin.model.units import CORES_PER_GPU, MIB
from deviceplugin.model.usage import Breach, Overrun

_CURE = (
    "delete the pod, or have the container load /usr/local/nvidia/lib64/libcuda.so.1 (LD_LIBRARY_PATH, no static CUDA)"
)


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How long and how far a container may exceed its limit; the mean load covers `window_s`."""

    patience_s: float = 10.0
    memory_slack: int = 64 * MIB
    cores_slack: float = 10.0
    window_s: float = 15.0


@dataclass(frozen=True, slots=True)
class GpuReading:
    """A container on one GPU. `accounted`: bytes by our library. `seen`: bytes and percent by the driver, None where it
    gives none. `unmanaged`: host PIDs on the GPU without a slot. `corrupted`: what is wrong with its shared state.
    """

    container: str
    gpu: Gpu
    limit_bytes: int
    limit_cores: float
    accounted_bytes: int
    seen_bytes: int | None
    seen_percent: float | None
    unmanaged: tuple[int, ...] = ()
    corrupted: str = ""


DEFAULT_TOLERANCE = Tolerance()


@dataclass(slots=True)
class LimitMonitor:
    """Watches one container."""

    tolerance: Tolerance = DEFAULT_TOLERANCE
    _since: dict[tuple[Breach, GpuUuid], float] = field(default_factory=dict)
    _load: dict[GpuUuid, tuple[float, float]] = field(default_factory=dict)

    def check(self, observed: tuple[GpuReading, ...], *, now: float) -> tuple[Overrun, ...]:
        """The breaches that have lasted by now; a breach that ends is forgotten at once."""
        found = {(each.breach, each.gpu): each for one in observed for each in self._breaches(one, now)}
        self._since = {key: self._since.get(key, now) for key in found}
        return tuple(each for key, each in found.items() if now - self._since[key] >= self.tolerance.patience_s)

    def _breaches(self, one: GpuReading, now: float) -> Iterator[Overrun]:
        where = f"container {one.container} on GPU {one.gpu.minor}"
        if one.corrupted:
            sentence = f"{where} has changed the state that its processes share ({one.corrupted}); {_CURE}"
            yield Overrun(Breach.STATE, one.gpu.uuid, sentence)
        if one.unmanaged:
            listed = ", ".join(map(str, one.unmanaged[:5]))
            sentence = f"{where} runs processes without vcuda's library (PIDs on the node: {listed}); {_CURE}"
            yield Overrun(Breach.BYPASS, one.gpu.uuid, sentence)
        if one.seen_bytes is not None and one.limit_bytes and self._is_over(one.seen_bytes, one.limit_bytes):
            yield Overrun(Breach.MEMORY, one.gpu.uuid, f"{where} {self._memory(one)}")
        load = self._mean_load(one, now)
        if load > one.limit_cores + self.tolerance.cores_slack and one.limit_cores < CORES_PER_GPU:
            sentence = f"{where} uses {load:.0f} % of the GPU's time and its limit is {one.limit_cores:.0f} %; {_CURE}"
            yield Overrun(Breach.CORES, one.gpu.uuid, sentence)

    def _is_over(self, used: int, limit: int) -> bool:
        return used > limit + self.tolerance.memory_slack

    def _memory(self, one: GpuReading) -> str:
        assert one.seen_bytes is not None
        facts = f"uses {one.seen_bytes // MIB} MiB and its limit is {one.limit_bytes // MIB} MiB"
        if self._is_over(one.accounted_bytes, one.limit_bytes):
            return f"{facts}, because the memory that the driver itself needs does not fit; request more memory blocks"
        return f"{facts}, but vcuda's library accounts for {one.accounted_bytes // MIB} MiB only; {_CURE}"

    def _mean_load(self, one: GpuReading, now: float) -> float:
        """The driver's percentage, smoothed: its readings are of moments."""
        seen = one.seen_percent or 0.0
        mean, at = self._load.get(one.gpu.uuid, (0.0, now - 1.0))
        weight = min(1.0, max(0.0, now - at) / self.tolerance.window_s)
        mean += (seen - mean) * weight
        self._load[one.gpu.uuid] = (mean, now)
        return mean
