"""CPU and memory, of which the choice of a GPU node looks at what is left beside the GPUs."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Compute:
    """Thousandths of a CPU, and bytes: what a node offers or what a pod asks for."""

    cpu_milli: int
    memory_bytes: int

    def __add__(self, other: "Compute") -> "Compute":
        return Compute(self.cpu_milli + other.cpu_milli, self.memory_bytes + other.memory_bytes)

    def __sub__(self, other: "Compute") -> "Compute":
        return Compute(self.cpu_milli - other.cpu_milli, self.memory_bytes - other.memory_bytes)


NOTHING = Compute(0, 0)
