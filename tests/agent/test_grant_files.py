"""A start does not fail because another container has taken the room."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from deviceplugin.agent.grant_files import AgentFiles
from deviceplugin.container.directories import GrantDirectories
from deviceplugin.container.driver_mirror.elf import Machine
from deviceplugin.container.driver_mirror.mirror import DriverMirror, MirrorOptions, MirrorState
from deviceplugin.container.shared_state import SharedState
from deviceplugin.errors import ContainerError
from tests.kubelet.makers import grant, inventory, pod


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs for some dozens of shares."""
    base = tmp_path / "vm"
    base.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m,nr_inodes=500", "small", base], check=True)
    try:
        yield base
    finally:
        subprocess.run(["umount", base], check=True)


@pytest.mark.root
@pytest.mark.parametrize("how", ["blocks", "attributes"])
def test_room_that_another_container_has_taken_is_taken_back_before_a_start(small: Path, how: str) -> None:
    shared = SharedState(small)
    mirror = DriverMirror(small.parent / "mirror", MirrorOptions(small, small, Machine.here()), loaded=lambda: "1")
    files = AgentFiles(GrantDirectories(small), shared, mirror=mirror, cdi=None, inventory=lambda: inventory(2))
    mirror.open()
    mirror.state = MirrorState(refusal="")
    attacker, victim = (
        grant(pod(name, ("c", 20, 8)).containers[0], (0, 20, 8), grant_id=f"g-{name}")
        for name in ("attacker", "victim")
    )
    files.fill(attacker)
    if how == "blocks":
        fill_with_blocks(shared.region(attacker.id))
    else:
        fill_with_attributes(shared.region(attacker.id))
    with pytest.raises(ContainerError, match="No space left on device"):
        shared.renew(victim.id, victim.allocation.uuids)
    assert files.fill(victim)
    assert shared.region(victim.id).exists()


def fill_with_blocks(path: Path) -> None:
    for size in (1 << 20, 1 << 16, 1 << 12):
        at = 1 << 20
        command = ["fallocate", "--keep-size", "--length", str(size), str(path), "--offset"]
        while subprocess.run([*command, str(at)], stderr=subprocess.DEVNULL).returncode == 0:
            at += size


def fill_with_attributes(path: Path) -> None:
    for size in (60_000, 100):
        try:
            for number in range(10_000):
                os.setxattr(path, f"user.{size}-{number}", bytes(size))
        except OSError:
            continue
        pytest.skip("extended attributes of this kernel's tmpfs are not bounded by its inodes")
