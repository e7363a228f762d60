"""A slice of an emulated GPU: one container with a memory limit, its processes, and what its region says of them.

The context of a process takes CONTEXT; `room` is what is left of the limit for its allocations then. A process counts
as begun when its overhead is in the region, so that a test's sums are exact.
"""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from deviceplugin.container import region
from tests.library.interposed import GRANT, Container, device
from tests.library.memory_client import MIB, Cuda
from tests.waiting import eventually as eventually

CONTEXT = 64 * MIB
LIMIT = 512 * MIB


@dataclass
class GpuSlice:
    """`with` closes the processes."""

    container: Container
    processes: ExitStack
    limit: int = LIMIT

    def __post_init__(self) -> None:
        self.container.environment["VCUDA_EMULATOR_CONTEXT_MIB"] = str(CONTEXT // MIB)
        self.container.grant(device(0, memory=self.limit))

    @property
    def errors(self) -> Path:
        return self.container.root / "errors"

    @property
    def room(self) -> int:
        """For the allocations of one process with a context."""
        return self.limit - CONTEXT

    def start(self, *, context: bool = True, **environment: str) -> Cuda:
        library = self.container.driver / "libcuda.so.1"
        cuda = Cuda(library, self.container.environment | environment, self.errors, context)
        self.processes.enter_context(cuda)
        if context:
            assert eventually(lambda: self.use(cuda).overhead == CONTEXT), self.use(cuda)
        return cuda

    def outside(self) -> Cuda:
        """A process on the same GPU that is in no container."""
        environment = {key: value for key, value in self.container.environment.items() if key != "VCUDA_DIR"}
        environment["LD_LIBRARY_PATH"] = str(self.container.cuda.parent)
        cuda = Cuda(self.container.cuda, environment, self.errors)
        return self.processes.enter_context(cuda)

    def start_beside_another(self) -> Cuda:
        """A process of a container that has a second GPU, without a limit of memory."""
        self.container.grant(device(0, memory=self.limit), device(1, memory=0), generation=2)
        return self.start()

    def change_limit(self, limit: int, generation: int) -> None:
        self.container.grant(device(0, memory=limit), generation=generation)
        self.limit = limit

    def use(self, cuda: Cuda, device: int = 0) -> region.Use:
        """What one process has; nothing where it has no slot."""
        found = [slot for slot in self.container.slots().values() if slot.pid == cuda.process.pid]
        return found[0].uses[device] if found else region.Use()

    def used(self) -> int:
        """What all processes have allocated."""
        return sum(slot.uses[0].used for slot in self.container.slots().values())

    def total(self) -> int:
        """The same with everybody's overhead and reservations."""
        uses = [slot.uses[0] for slot in self.container.slots().values()]
        return sum(use.used + use.pending + use.overhead for use in uses)

    def counters(self) -> region.Counters:
        return region.read(self.container.region_file, grant=GRANT, devices=16).counters[0]
