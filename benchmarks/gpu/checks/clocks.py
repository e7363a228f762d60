"""The SM clock while something works, by the driver's own NVML.

A GPU whose power is limited lowers its clock under full load and keeps it in the pauses that a limit makes. So the same
share of time is more work there; a share of work is compared after both are brought to the same clock.
"""

import statistics
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.checks.common import host_nvml
from benchmarks.gpu.inside.driver_api import CudaError, Nvml

EACH_S = 0.05


class SmClock:
    """Nothing is known where there is no NVML, or where it does not tell the clock or whether the GPU is busy."""

    def __init__(self, bench: Bench) -> None:
        self.nvml: Nvml | None
        try:
            self.nvml = host_nvml(bench)
            self.nvml.sm_mhz()
        except (OSError, AttributeError, CudaError):
            self.nvml = None

    @contextmanager
    def added_to(self, medians: list[float]) -> Iterator[None]:
        """At the end, the median of what was seen meanwhile while the GPU was busy; nothing if it never was."""
        seen: list[int] = []
        end = threading.Event()
        thread = threading.Thread(target=self._watch, args=(seen, end))
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join()
        if seen:
            medians.append(statistics.median(seen))

    def _watch(self, seen: list[int], end: threading.Event) -> None:
        while self.nvml is not None and not end.wait(EACH_S):
            try:
                if self.nvml.busy_percent() > 0:
                    seen.append(self.nvml.sm_mhz())
            except CudaError:
                return
