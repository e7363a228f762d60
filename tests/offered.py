"""What an emulated node offers.

In: its profile. Out: whole memory blocks of each GPU, without the memory that the driver keeps for itself. Not here:
starting the node (`sandbox.emulated_gpus`).
"""

from pathlib import Path

from deviceplugin.simulate.gpu_profile import parse_profile


def blocks_of_each(profile: Path) -> list[int]:
    """Of 256 MiB, in the order of the profile."""
    return [gpu.blocks for gpu in parse_profile(profile.read_bytes()).inventory.gpus]
