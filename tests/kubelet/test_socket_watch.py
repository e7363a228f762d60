"""Which events in kubelet's directory wake the registration loop, and that reading it wakes no thread of the agent."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deviceplugin.kubelet import grpc_endpoint
from deviceplugin.kubelet.grpc_endpoint import SocketWatch


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


async def wakes(directory: Path, act: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends by the event alone: the poll would come after the test's time."""
    monkeypatch.setattr(grpc_endpoint, "POLL_BEHIND_INOTIFY_S", 300.0)
    watch = SocketWatch(directory, {"a.sock"})
    watch.start()
    try:
        waiting = asyncio.create_task(watch.wait(at_rest=False))
        await asyncio.sleep(0)
        act()
        async with asyncio.timeout(60):
            await waiting
    finally:
        watch.stop()


def put_in_place(directory: Path) -> None:
    (directory / "fresh.sock").replace(directory / "a.sock")


def masks_of(directory: Path) -> Iterator[int]:
    """Of this process's inotify watches on the directory, as the kernel has them."""
    inode = f"ino:{directory.stat().st_ino:x} "
    for info in Path("/proc/self/fdinfo").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor with which the list was read
            for line in info.read_text().splitlines():
                if line.startswith("inotify ") and inode in line:
                    yield int(line.split("mask:")[1].split()[0], 16)


async def test_a_new_socket_wakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await wakes(tmp_path, lambda: bind(tmp_path / "a.sock"), monkeypatch)


async def test_a_deleted_socket_wakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bind(tmp_path / "a.sock")
    await wakes(tmp_path, (tmp_path / "a.sock").unlink, monkeypatch)


async def test_a_socket_that_is_put_in_place_of_another_wakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.sock", "fresh.sock"):
        bind(tmp_path / name)
    await wakes(tmp_path, lambda: put_in_place(tmp_path), monkeypatch)


async def test_the_kernel_does_not_report_who_reads_the_directory(tmp_path: Path) -> None:
    watch = SocketWatch(tmp_path, {"a.sock"})
    watch.start()
    try:
        masks = list(masks_of(tmp_path))
    finally:
        watch.stop()
    opened, closed, read = 0x20, 0x10, 0x1  # IN_OPEN, IN_CLOSE_NOWRITE, IN_ACCESS
    assert masks
    assert not any(mask & (opened | closed | read) for mask in masks)
