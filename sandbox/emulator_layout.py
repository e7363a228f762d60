"""A compiled profile of the emulated driver, as emulator/shared/profile.h and layout.h declare it.

In: values that sandbox.emulator_profile has checked. Out: the bytes that the emulated driver copies into its state.
Invariant: members have the order and the types of the C structures; by the sizes in the header the driver refuses a
file whose structures are not its own.
"""

import ctypes
from collections.abc import Sequence
from ctypes import c_char, c_int32, c_uint8, c_uint32, c_uint64
from typing import Any

MAX_GPUS = 64
MAX_PROCESSES = 256
MAX_LINKS = 18
MAX_SWITCHES = 32
MAX_NODES = 32
MAX_CPUS = 2048
_WORD = 64
_BUS_ID_SIZE = 24
_MAGIC = int.from_bytes(b"VCUDAPRF", "little")


def _members(kind: type[Any], names: str) -> list[tuple[str, type[Any]]]:
    return [(name, kind) for name in names.split()]


class GpuLink(ctypes.Structure):
    """struct gpu_link"""

    _fields_ = _members(c_int32, "gpu nvswitch")


class GpuFacts(ctypes.Structure):
    """struct gpu_facts"""

    _fields_ = [
        ("name", c_char * 96),
        ("uuid", c_char * 48),
        ("serial", c_char * 32),
        ("bus_id", c_char * _BUS_ID_SIZE),
        ("part_number", c_char * 32),
        ("vbios", c_char * 32),
        ("minor", c_uint32),
        ("numa", c_int32),
        *_members(c_uint32, "domain bus device pci_id pci_subsystem_id"),
        *_members(c_uint64, "memory_mib reserved_mib bar1_mib"),
        *_members(c_uint32, "capability_major capability_minor brand cores memory_bus_bits pcie_generation pcie_width"),
        *_members(c_uint32, "power_limit_w power_min_w power_max_w power_idle_w sm_clock_mhz memory_clock_mhz"),
        *_members(c_uint32, "fans ecc mig_capable link_version link_count"),
        ("links", GpuLink * MAX_LINKS),
        ("level", c_uint8 * MAX_GPUS),
    ]


class Gpu(ctypes.Structure):
    """struct profile_gpu"""

    _fields_ = [
        ("facts", GpuFacts),
        *_members(c_uint32, "compute_mode persistence mig process_count"),
        *_members(c_int32, "gpu_util memory_util temperature_c power_w"),
        ("used_mib", c_uint64),
    ]


class Process(ctypes.Structure):
    """struct gpu_process"""

    _fields_ = [
        *_members(c_uint32, "pid kind"),
        ("memory_mib", c_uint64),
        *_members(c_uint32, "sm memory_util"),
        *_members(c_uint64, "start_time pid_namespace"),
        *_members(c_uint32, "outer_pid spare"),
        ("name", c_char * 64),
    ]


class Node(ctypes.Structure):
    """struct node_cpus"""

    _fields_ = [*_members(c_int32, "numa spare"), ("mask", c_uint64 * (MAX_CPUS // _WORD))]


class Switch(ctypes.Structure):
    """One of the bus ids of switches."""

    _fields_ = [("bus_id", c_char * _BUS_ID_SIZE)]


class Header(ctypes.Structure):
    """struct profile_header"""

    _fields_ = [
        ("magic", c_uint64),
        *_members(c_uint32, "header_size gpu_size process_size gpu_count process_count node_count switch_count cuda"),
        ("name", c_char * 128),
        ("driver", c_char * 80),
        ("nodes", Node * MAX_NODES),
        ("switches", Switch * MAX_SWITCHES),
    ]


def node(numa: int, cpus: int) -> Node:
    """`cpus`: a bit for each core."""
    words = [cpus >> first & (1 << _WORD) - 1 for first in range(0, MAX_CPUS, _WORD)]
    return Node(numa=numa, mask=(c_uint64 * len(words))(*words))


def profile(header: Header, gpus: Sequence[Gpu], processes: Sequence[Process]) -> bytes:
    """The whole file; `processes` in the order of their GPUs."""
    header.magic = _MAGIC
    header.header_size, header.gpu_size, header.process_size = map(ctypes.sizeof, (Header, Gpu, Process))
    header.gpu_count, header.process_count = len(gpus), len(processes)
    return b"".join(map(bytes, (header, *gpus, *processes)))
