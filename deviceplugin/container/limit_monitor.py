"""Whether a container keeps to its share: the driver's view of it against its limits and our library's account.

In: one reading of each second. Out: the breaches that have lasted long enough to be none of the driver's lags. Pure but
for its memory of earlier readings. The library is cooperative: a static binary, a libcuda of the container's own or a
program that talks to the driver by ioctl never meets it, and the driver's list of processes is how that shows.
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
class Rules:
    """What is tolerated: for how long, and how far beyond the limit; `window_s` is the memory of the mean load."""

    patience_s: float = 10.0
    memory_slack: int = 64 * MIB
    cores_slack: float = 10.0
    window_s: float = 15.0


@dataclass(frozen=True, slots=True)
class Observed:
    """A container on one GPU. `accounted` bytes by our library, `seen` bytes and percent by the driver (None: it does
    not say); `strangers` are host PIDs on the GPU without a slot; `spoilt` says what is wrong with its shared state."""

    container: str
    gpu: Gpu
    limit_bytes: int
    limit_cores: float
    accounted_bytes: int
    seen_bytes: int | None
    seen_percent: float | None
    strangers: tuple[int, ...] = ()
    spoilt: str = ""


DEFAULT_RULES = Rules()


@dataclass(slots=True)
class Conduct:
    """The record of one container."""

    rules: Rules = DEFAULT_RULES
    _since: dict[tuple[Breach, GpuUuid], float] = field(default_factory=dict)
    _load: dict[GpuUuid, tuple[float, float]] = field(default_factory=dict)

    def look(self, observed: tuple[Observed, ...], *, now: float) -> tuple[Overrun, ...]:
        """What has lasted, by this reading; a breach that is over is forgotten at once."""
        found = {(each.breach, each.gpu): each for one in observed for each in self._breaches(one, now)}
        self._since = {key: self._since.get(key, now) for key in found}
        return tuple(each for key, each in found.items() if now - self._since[key] >= self.rules.patience_s)

    def _breaches(self, one: Observed, now: float) -> Iterator[Overrun]:
        where = f"container {one.container} on GPU {one.gpu.minor}"
        if one.spoilt:
            sentence = f"{where} has changed the state that its processes share ({one.spoilt}); {_CURE}"
            yield Overrun(Breach.STATE, one.gpu.uuid, sentence)
        if one.strangers:
            listed = ", ".join(map(str, one.strangers[:5]))
            sentence = f"{where} runs processes without vcuda's library (PIDs on the node: {listed}); {_CURE}"
            yield Overrun(Breach.BYPASS, one.gpu.uuid, sentence)
        if one.seen_bytes is not None and one.limit_bytes and self._is_over(one.seen_bytes, one.limit_bytes):
            yield Overrun(Breach.MEMORY, one.gpu.uuid, f"{where} {self._memory(one)}")
        load = self._mean_load(one, now)
        if load > one.limit_cores + self.rules.cores_slack and one.limit_cores < CORES_PER_GPU:
            sentence = (
                f"{where} keeps it busy for {load:.0f} % of the time and may for {one.limit_cores:.0f} %; {_CURE}"
            )
            yield Overrun(Breach.CORES, one.gpu.uuid, sentence)

    def _is_over(self, used: int, limit: int) -> bool:
        return used > limit + self.rules.memory_slack

    def _memory(self, one: Observed) -> str:
        assert one.seen_bytes is not None
        facts = f"holds {one.seen_bytes // MIB} MiB and may hold {one.limit_bytes // MIB} MiB"
        if self._is_over(one.accounted_bytes, one.limit_bytes):
            return f"{facts}, because what the driver itself needs does not fit; give it more memory blocks"
        return f"{facts}, of which vcuda's library knows {one.accounted_bytes // MIB} MiB; {_CURE}"

    def _mean_load(self, one: Observed, now: float) -> float:
        """The driver's percentage, smoothed: its readings are of moments."""
        seen = one.seen_percent or 0.0
        mean, at = self._load.get(one.gpu.uuid, (0.0, now - 1.0))
        weight = min(1.0, max(0.0, now - at) / self.rules.window_s)
        mean += (seen - mean) * weight
        self._load[one.gpu.uuid] = (mean, now)
        return mean
