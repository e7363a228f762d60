"""`Hardware` on the emulated driver, while an operator's command changes it from another process."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deviceplugin.hardware.health import RecoveryRules
from deviceplugin.hardware.node import Hardware
from deviceplugin.model.gpu import GpuProcess, GpuUuid
from tests.hardware import profiles
from tests.hardware.emulator import Emulator
from tests.hardware.starting import Start, answers, gpus, heard, reasons, starting, until_reasons
from tests.waiting import until

PATIENT = RecoveryRules(quiet_s=1000, passes=3)


@pytest.fixture
async def start(emulated: Emulator, short_tmp: Path) -> AsyncIterator[Start]:
    emulated.describe(profiles.many(4))
    async with starting(emulated.library, short_tmp) as begin:
        yield begin


async def sampled(hardware: Hardware) -> list[GpuUuid]:
    """The GPUs, once each of them was read."""
    await until(lambda: len(hardware.samples) == len(gpus(hardware)) > 0)
    return gpus(hardware)


async def test_a_lost_gpu_that_spoils_waiting_does_not_make_the_agent_deaf(emulated: Emulator, start: Start) -> None:
    hardware = await start(recovery=PATIENT)
    uuids = await sampled(hardware)
    emulated.command("lose", 1, "--silent", "--wait-error")
    await until_reasons(hardware, {uuids[1]: "GPU is lost"})
    emulated.command("xid", 3, 74)
    await until(lambda: reasons(hardware).get(uuids[3]) == "XID 74 (NVLink error)")
    emulated.command("recover", 1)
    await until(lambda: uuids[1] not in reasons(hardware))
    emulated.command("xid", 1, 48)
    await until(lambda: reasons(hardware).get(uuids[1]) == "XID 48 (double-bit ECC error)")


async def test_a_gpu_that_is_removed_stays_known_and_unhealthy(emulated: Emulator, start: Start) -> None:
    hardware = await start()
    uuids = await sampled(hardware)
    emulated.command("remove", 1, "--silent")
    await until_reasons(hardware, {uuids[1]: "NVML no longer lists it"})
    assert gpus(hardware) == uuids
    emulated.command("recover", 1)
    await until_reasons(hardware, {})
    assert gpus(hardware) == uuids


async def test_memory_errors_count_by_the_xid_that_comes_with_them(emulated: Emulator, start: Start) -> None:
    profile = profiles.many(2)
    for model in profile["models"].values():
        model["ecc"] = True
    emulated.describe(profile)
    hardware = await start(recovery=PATIENT)
    uuids = await sampled(hardware)
    emulated.command("ecc", 0, "uncorrected", 3)
    emulated.command("ecc", 1, "uncorrected", 1)
    emulated.command("xid", 0, 94)
    emulated.command("xid", 1, 95)
    await until_reasons(hardware, {uuids[1]: "XID 95 (uncontained ECC error)"})


async def test_what_runs_on_a_gpu_shows_in_its_samples(emulated: Emulator, start: Start) -> None:
    hardware = await start()
    uuids = await sampled(hardware)
    assert hardware.samples[uuids[0]].memory_used_bytes == 0
    emulated.command("process", "add", 0, 4711, 2048, 60)
    emulated.command("process", "add", 0, 4712, 512, 0, "--type", "graphics")
    emulated.command("process", "add", 0, 4713, 256, 20, "--type", "mps")
    expected = {
        GpuProcess(pid=4711, memory_bytes=2 << 30, sm_percent=60),
        GpuProcess(pid=4712, memory_bytes=512 << 20, sm_percent=0),
        GpuProcess(pid=4713, memory_bytes=256 << 20, sm_percent=20),
    }
    await until(lambda: set(hardware.samples[uuids[0]].processes) == expected)
    assert hardware.samples[uuids[0]].utilization_percent == 80
    assert hardware.samples[uuids[0]].memory_used_bytes == 2816 << 20
    assert hardware.samples[uuids[1]].processes == ()
    emulated.command("process", "remove", 0, 4711)
    await until(lambda: 4711 not in {process.pid for process in hardware.samples[uuids[0]].processes})
    emulated.command("util", 1, 33, 5)
    await until(lambda: hardware.samples[uuids[1]].utilization_percent == 33)


@pytest.mark.parametrize(("how", "said"), [("unload", "there is no NVIDIA driver"), ("mismatch", "RM has detected")])
async def test_a_driver_that_goes_away_is_waited_for(emulated: Emulator, start: Start, how: str, said: str) -> None:
    hardware = await start(recovery=PATIENT)
    uuids = await sampled(hardware)
    emulated.command("xid", 0, 79)
    await until(lambda: list(reasons(hardware)) == [uuids[0]], seen=lambda: reasons(hardware))
    emulated.command("driver", how)
    await until(lambda: [reason.startswith(said) for reason in reasons(hardware).values()] == [True] * 4)
    assert not answers(hardware)
    assert hardware.samples == {}
    assert gpus(hardware) == uuids
    emulated.command("driver", "load")
    await until_reasons(hardware, {})
    await sampled(hardware)


async def test_a_driver_that_is_reloaded_quickly_voids_the_handles_and_nothing_else(
    emulated: Emulator, start: Start
) -> None:
    hardware = await start()
    await sampled(hardware)
    for _ in range(3):
        emulated.command("driver", "unload")
        emulated.command("driver", "load")
        await until(lambda: not answers(hardware) or reasons(hardware) == {})
    await until(lambda: answers(hardware) and reasons(hardware) == {})
    await sampled(hardware)


async def test_a_restart_finds_a_gpu_that_fell_off_meanwhile(emulated: Emulator, start: Start, short_tmp: Path) -> None:
    cache = short_tmp / "inventory.json"
    first = await start(cache_path=cache)
    uuids = await sampled(first)
    await first.stop()
    emulated.command("remove", 3, "--silent")
    emulated.command("lose", 0, "--silent")
    second = await start(cache_path=cache)
    assert gpus(second) == uuids
    await until_reasons(second, {uuids[3]: "NVML no longer lists it", uuids[0]: "GPU is lost"})
    assert second.inventory is not None
    assert len(second.inventory.topology.links) == 6, "what is known of a lost GPU stays"
    emulated.command("recover", 0)
    emulated.command("recover", 3)
    await until_reasons(second, {})


async def test_forty_gpus_are_watched_each_on_its_own(emulated: Emulator, start: Start) -> None:
    emulated.describe(profiles.many(40))
    hardware = await start(recovery=PATIENT)
    uuids = await sampled(hardware)
    assert len(uuids) == 40
    emulated.command("lose", 33, "--silent")
    emulated.command("xid", 39, 79)
    await until(
        lambda: reasons(hardware) == {uuids[33]: "GPU is lost", uuids[39]: "XID 79 (GPU has fallen off the bus)"}
    )


async def test_an_event_storm_neither_blocks_nor_multiplies(emulated: Emulator, start: Start) -> None:
    hardware = await start(recovery=PATIENT)
    uuids = await sampled(hardware)
    changes = heard(hardware)
    for _ in range(20):
        emulated.command("xid", 1, 79)
    change = await asyncio.wait_for(changes.get(), 60)
    assert [one.uuid for one in change.health] == [uuids[1]]
    before = time.monotonic()
    await until(lambda: time.monotonic() - before > 0.1)
    assert changes.empty()


async def test_closed_nvml_lets_a_gpu_be_reset_and_opens_again(emulated: Emulator, start: Start) -> None:
    """NVML D9: the agent's own advice, to reset the GPU, was refused because the agent used the driver."""
    hardware = await start(recovery=PATIENT)
    uuids = await sampled(hardware)
    emulated.command("lose", 2)
    await until_reasons(hardware, {uuids[2]: "GPU is lost"})
    before = hardware.inventory
    assert "is in use by another client" in emulated.refused("reset", 2)
    hardware.close_nvml(wanted=True)
    await until(lambda: hardware.nvml_closed)
    assert emulated.command("clients") == ""
    emulated.command("reset", 2)
    assert (hardware.inventory, hardware.samples) == (before, {})
    hardware.close_nvml(wanted=False)
    await until_reasons(hardware, {})  # the XID is forgiven: the operator reset the GPU
    await sampled(hardware)
    assert not hardware.nvml_closed
    assert emulated.command("clients") != ""


async def test_while_nvml_is_closed_the_driver_can_come_and_go(emulated: Emulator, start: Start) -> None:
    hardware = await start()
    await sampled(hardware)
    changes = heard(hardware)
    hardware.close_nvml(wanted=True)
    await until(lambda: hardware.nvml_closed)
    for step in ("unload", "load", "unload"):
        emulated.command("driver", step)
    hardware.close_nvml(wanted=False)
    await until(lambda: set(reasons(hardware).values()) == {"there is no NVIDIA driver"})
    assert hardware.nvml_closed, "nothing is open, so all GPUs stay cordoned"
    emulated.command("driver", "load")
    await until(lambda: reasons(hardware) == {} and not hardware.nvml_closed, seen=lambda: reasons(hardware))
    await sampled(hardware)
    seen = [changes.get_nowait() for _ in range(changes.qsize())]
    assert [len(change.health) for change in seen] == [4, 4], "unhealthy and healthy again, only when opened too early"


async def test_an_agent_that_restarts_keeps_nvml_closed_until_it_may_open(
    emulated: Emulator, start: Start, short_tmp: Path
) -> None:
    cache = short_tmp / "inventory.json"
    first = await start(cache_path=cache)
    uuids = await sampled(first)
    first.close_nvml(wanted=True)
    await until(lambda: first.nvml_closed)
    await first.stop()
    emulated.command("driver", "unload")
    second = await start(cache_path=cache)
    assert gpus(second) == uuids
    second.close_nvml(wanted=True)  # as the API server says, a moment later
    for _ in range(20):
        await asyncio.sleep(0.01)
        assert (second.nvml_closed, reasons(second)) == (True, {})
    emulated.command("driver", "load")
    second.close_nvml(wanted=False)
    await sampled(second)


async def test_a_request_that_changes_again_and_again_ends_as_it_was_made_last(
    emulated: Emulator, start: Start
) -> None:
    hardware = await start()
    await sampled(hardware)
    for turn in range(30):
        hardware.close_nvml(wanted=turn % 2 == 0)
        await asyncio.sleep(0.003 * (turn % 5))
    await sampled(hardware)
    assert (hardware.nvml_closed, reasons(hardware)) == (False, {})
    for wanted in (True, False, True):
        hardware.close_nvml(wanted=wanted)
    await until(lambda: hardware.nvml_closed)
    assert emulated.command("clients") == ""
