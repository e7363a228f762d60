"""`Hardware` on a driver that is absent, hung, replaced, old, or refuses everything."""

import asyncio
import shutil
import time

import pytest
import structlog.testing

from deviceplugin.errors import DriverMissingError, HardwareError, NvmlCallError
from deviceplugin.hardware.health import GPU_HUNG, HUNG, RecoveryRules
from deviceplugin.hardware.node import Hardware
from deviceplugin.hardware.pci import ModuleTools, kernel_name
from deviceplugin.model.topology import Level
from deviceplugin.structs import replace
from tests.hardware import nvml_library
from tests.hardware.conftest import Stub, uuid
from tests.hardware.starting import Start, answers, gpus, heard, options, reasons, until_reasons
from tests.hardware.test_pci import device, information
from tests.waiting import until


async def test_without_a_driver_start_says_so_in_one_line(stub: Stub) -> None:
    hardware = Hardware(options(stub.orders / "nothing.so", stub.orders))
    with pytest.raises(DriverMissingError, match=r"nothing\.so cannot be loaded as NVML") as raised:
        await hardware.start()
    assert "\n" not in raised.value.message
    assert hardware.inventory is None
    await hardware.stop()


async def test_with_wait_for_driver_it_reports_once_and_starts_when_the_driver_is_there(
    stub: Stub, start: Start
) -> None:
    library = stub.orders / "late.so"
    with structlog.testing.capture_logs() as logs:
        task = asyncio.create_task(start(library=library, wait_for_driver=True))
        await until(lambda: logs)
        await asyncio.sleep(0.1)  # some more tries, which must stay silent
        assert not task.done()
        shutil.copy(stub.library, stub.orders / "copy.so")
        (stub.orders / "copy.so").rename(library)
        hardware = await asyncio.wait_for(task, 60)
    assert gpus(hardware) == [uuid(0), uuid(1)]
    # Threads that other tests left behind (an exec plugin that hangs) may log too: only what names the driver counts.
    said = [entry["event"] for entry in logs if entry["log_level"] == "warning" and "driver" in entry["event"]]
    assert said == ["waiting_for_driver"]


async def test_a_wait_for_the_driver_can_be_ended(stub: Stub) -> None:
    hardware = Hardware(options(stub.orders / "never.so", stub.orders, wait_for_driver=True))
    task = asyncio.create_task(hardware.start())
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await hardware.stop()


async def test_a_driver_that_refuses_everything_is_an_error_of_its_own(stub: Stub) -> None:
    stub.order("nvmlDeviceGetCount_v2", 999)
    hardware = Hardware(options(stub.library, stub.orders))
    with pytest.raises(NvmlCallError, match="nvmlDeviceGetCount failed: NVML says 'Unknown Error'"):
        await hardware.start()
    await hardware.stop()


async def test_a_driver_newer_than_the_library_is_said_once(stub: Stub, start: Start) -> None:
    """Library D15."""
    with structlog.testing.capture_logs() as logs:
        for cuda in (13050, 14000):
            stub.order("cuda", cuda)
            await (await start()).stop()
    (said,) = [entry["error"] for entry in logs if entry["event"] == "driver_newer_than_vcuda"]
    assert [word for word in ("CUDA 14.0", "up to CUDA 13.5") if word not in said] == []


async def test_a_restarted_agent_knows_its_gpus_while_the_driver_still_hangs(stub: Stub, start: Start) -> None:
    cache = stub.orders / "inventory.json"
    await (await start(cache_path=cache)).stop()
    stub.order("hang")
    async with asyncio.timeout(10):  # the driver is waited for longer
        hardware = await start(cache_path=cache)
    assert gpus(hardware) == [uuid(0), uuid(1)]
    assert not answers(hardware)
    stub.withdraw("hang")
    await until(lambda: answers(hardware))
    assert reasons(hardware) == {}


async def test_the_drivers_first_answer_corrects_the_cache(stub: Stub, start: Start) -> None:
    cache = stub.orders / "inventory.json"
    await (await start(cache_path=cache)).stop()
    stub.order("gpus", 3)
    hardware = await start(cache_path=cache)
    assert gpus(hardware) == [uuid(0), uuid(1)]
    await until(lambda: gpus(hardware) == [uuid(0), uuid(1), uuid(2)], seen=lambda: gpus(hardware))


async def test_with_a_cache_a_missing_driver_makes_the_gpus_unhealthy_and_is_waited_for(
    stub: Stub, start: Start
) -> None:
    cache = stub.orders / "inventory.json"
    await (await start(cache_path=cache)).stop()
    nvml_library.unmap()
    stub.order("nvmlInitWithFlags", 9)
    hardware = await start(cache_path=cache)
    await until_reasons(hardware, dict.fromkeys((uuid(0), uuid(1)), "there is no NVIDIA driver"))
    stub.withdraw("nvmlInitWithFlags")
    await until_reasons(hardware, {})


async def test_a_hung_driver_makes_all_unhealthy_and_blocks_nothing(stub: Stub, start: Start) -> None:
    hardware = await start(call_budget_s=0.05, hang_s=0.2)
    await until(lambda: hardware.samples)
    stub.order("hang")
    await until(lambda: set(reasons(hardware).values()) == {HUNG})
    assert len(reasons(hardware)) == 2
    assert hardware.samples == {}
    stub.withdraw("hang")
    await until_reasons(hardware, {}, within=8)
    await until(lambda: len(hardware.samples) == 2)


async def test_stopping_does_not_wait_for_a_hung_driver(stub: Stub, start: Start) -> None:
    hardware = await start(call_budget_s=0.05)
    stub.order("hang")
    await until(lambda: hardware._executor.stuck_for > 0)
    async with asyncio.timeout(4):  # shorter than any budget
        await hardware.stop()


async def test_void_handles_are_renewed_without_a_verdict(stub: Stub, start: Start) -> None:
    hardware = await start()
    await until(lambda: hardware.samples)
    changes = heard(hardware)
    stub.order("nvmlDeviceGetMemoryInfo.0", 1)
    await until(lambda: not answers(hardware))
    stub.withdraw("nvmlDeviceGetMemoryInfo.0")
    await until(lambda: answers(hardware))
    await until(lambda: len(hardware.samples) == 2)
    seen = [changes.get_nowait() for _ in range(changes.qsize())]
    assert [one.new.reason for change in seen for one in change.health if not one.new.healthy] in (
        [],
        ["Uninitialized", "Uninitialized"],  # the order stood long enough to fail the second opening too
    )


async def test_a_driver_that_voids_every_handle_is_no_busy_loop(stub: Stub, start: Start) -> None:
    hardware = await start(retry_first_s=0.05, retry_most_s=10.0)
    stub.order("nvmlDeviceGetMemoryInfo", 1)
    await until(lambda: len(reasons(hardware)) == 2)
    generation = hardware._executor._nvml.generation
    began = time.monotonic()
    await until(lambda: time.monotonic() - began > 0.3)
    assert hardware._executor._nvml.generation - generation <= 6, "opened three times at most, and closed as often"


async def test_after_an_upgrade_of_the_driver_the_new_library_is_taken(stub: Stub, start: Start) -> None:
    library = stub.orders / "driver.so"
    shutil.copy(stub.old_library, library)
    hardware = await start(library=library)
    assert hardware.inventory is not None
    assert hardware.inventory.topology.link(0, 1).level is None
    shutil.copy(stub.library, stub.orders / "fresh.so")
    (stub.orders / "fresh.so").rename(library)
    stub.order("nvmlDeviceGetMemoryInfo", 18)
    await until(lambda: not answers(hardware))
    stub.withdraw("nvmlDeviceGetMemoryInfo")
    await until(lambda: hardware.inventory is not None and hardware.inventory.topology.link(0, 1).level is Level.PIX)
    await until_reasons(hardware, {})


async def test_an_old_driver_serves_with_what_it_has(stub: Stub, start: Start) -> None:
    hardware = await start(library=stub.old_library)
    inventory = hardware.inventory
    assert inventory is not None
    assert [gpu.uuid for gpu in inventory.gpus] == [uuid(0), uuid(1)]
    assert inventory.topology.link(0, 1).level is None
    await until(lambda: len(hardware.samples) == 2)
    stub.order("nvmlDeviceGetMemoryInfo.1", 15)
    await until_reasons(hardware, {uuid(1): "GPU is lost"})


async def test_the_modules_are_loaded_when_the_control_device_is_missing(stub: Stub, start: Start) -> None:
    tools = _modprobe(stub)
    (stub.orders / "dev/nvidiactl").unlink()
    await start(modules=tools)
    assert (stub.orders / "modprobe").read_text() == "-c 255 -c 0\n-u -c 0\n"


async def test_the_node_of_unified_memory_is_made_before_a_container_needs_it(stub: Stub, start: Start) -> None:
    """After a boot nothing else makes it, and no container can: CUDA would fail in each."""
    tools, uvm = _modprobe(stub), stub.orders / "dev/nvidia-uvm"
    uvm.unlink()
    hardware = await start(modules=tools)
    assert uvm.exists()
    assert reasons(hardware) == {}
    uvm.unlink()
    await until(uvm.exists)


async def test_a_gpu_without_a_device_node_is_unhealthy_until_it_is_there(stub: Stub, start: Start) -> None:
    nodes = stub.orders / "dev"
    (nodes / "nvidia-uvm").unlink()
    hardware = await start(modules=ModuleTools(path=str(stub.orders / "nowhere")))
    fix = "/dev/nvidia-uvm is missing; run `nvidia-modprobe -u -c 0` on the node"
    await until_reasons(hardware, dict.fromkeys((uuid(0), uuid(1)), fix))
    (nodes / "nvidia-uvm").touch()
    await until_reasons(hardware, {})
    (nodes / "nvidia1").unlink()
    await until_reasons(hardware, {uuid(1): "/dev/nvidia1 is missing; run `nvidia-modprobe -c 1` on the node"})
    (nodes / "nvidia1").touch()
    await until_reasons(hardware, {})


async def test_the_kernel_says_where_a_gpu_is_before_the_driver_is_asked_again(stub: Stub, start: Start) -> None:
    """It is loaded again under an agent that waits for the next reading."""
    hardware = await start()
    assert hardware.inventory is not None
    first = hardware.inventory.gpus[0]
    await hardware.settled()
    assert hardware.located(first) == first
    information(stub.orders / "proc", kernel_name(first.bus_id), 5)
    assert hardware.located(first) == replace(first, minor=5)


async def test_an_agent_that_knows_gpus_from_before_only_says_that_it_does_not_know_where_they_are(
    stub: Stub, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = stub.orders / "inventory.json"
    before = await start(cache_path=cache)
    await before.stop()
    stub.order("hang")
    monkeypatch.setattr("deviceplugin.hardware.node._LOOKS", 3)
    hardware = await start(cache_path=cache)
    with pytest.raises(HardwareError, match="the NVIDIA driver has not answered since the agent started"):
        await hardware.settled()
    assert hardware.inventory is not None
    for minor, gpu in enumerate(hardware.inventory.gpus):
        information(stub.orders / "proc", kernel_name(gpu.bus_id), minor)
    await hardware.settled()


def _modprobe(stub: Stub) -> ModuleTools:
    """Writes down how it was called, and makes what the real one makes."""
    device(stub.orders / "sys", "0000:01:00.0")
    tools = stub.orders / "bin"
    tools.mkdir()
    made = f"{stub.orders}/dev/nvidiactl {stub.orders}/dev/nvidia-uvm"
    (tools / "nvidia-modprobe").write_text(f"#!/bin/sh\necho $* >> {stub.orders}/modprobe\n/usr/bin/touch {made}\n")
    (tools / "nvidia-modprobe").chmod(0o755)
    return ModuleTools(path=str(tools))


async def test_a_driver_that_is_upgraded_while_nvml_is_closed_is_taken(stub: Stub, start: Start) -> None:
    """NVML D9: nothing of the old library may stay mapped, or its directory could not be unmounted."""
    library = stub.orders / "driver.so"
    shutil.copy(stub.old_library, library)
    hardware = await start(library=library)
    hardware.close_nvml(wanted=True)
    await until(lambda: hardware.nvml_closed)
    assert not nvml_library.is_mapped()
    shutil.copy(stub.library, stub.orders / "fresh.so")
    (stub.orders / "fresh.so").rename(library)
    hardware.close_nvml(wanted=False)
    await until(lambda: hardware.inventory is not None and hardware.inventory.topology.link(0, 1).level is Level.PIX)
    assert reasons(hardware) == {}


async def test_no_event_set_is_left_when_nvml_is_shut_down(stub: Stub, start: Start) -> None:
    """It keeps device nodes open: after closing, a GPU could not be reset; with every opening, there would be more."""
    stub.order("gpus", 3)
    hardware = await start()
    stub.order("gpus", 2)
    await until_reasons(hardware, {uuid(2): "NVML no longer lists it"})
    stub.order("nvmlDeviceGetMemoryInfo.0", 1)
    await until(lambda: not answers(hardware))
    stub.withdraw("nvmlDeviceGetMemoryInfo.0")
    await until(lambda: answers(hardware))
    hardware.close_nvml(wanted=True)
    await until(lambda: hardware.nvml_closed)
    assert len(stub.sets_left) >= 3
    assert set(stub.sets_left) == {0}


async def test_nvml_of_a_hung_driver_is_closed_when_it_answers(stub: Stub, start: Start) -> None:
    hardware = await start(call_budget_s=0.05, hang_s=0.2)
    stub.order("hang")
    await until(lambda: hardware._executor.stuck_for > 0)
    hardware.close_nvml(wanted=True)
    await until(lambda: set(reasons(hardware).values()) == {HUNG})
    assert not hardware.nvml_closed
    stub.withdraw("hang")
    await until(lambda: hardware.nvml_closed)
    assert not nvml_library.is_mapped()


async def test_an_agent_without_a_known_gpu_does_not_touch_a_driver_that_it_shall_leave_alone(
    stub: Stub, start: Start
) -> None:
    stub.order("nvmlInitWithFlags", 9)
    hardware = Hardware(options(stub.library, stub.orders, wait_for_driver=True))
    starting = asyncio.create_task(hardware.start())
    with structlog.testing.capture_logs() as logs:
        await until(lambda: any(entry["event"] == "waiting_for_driver" for entry in logs))
    hardware.close_nvml(wanted=True)
    await until(lambda: not hardware._asked.is_set())
    stub.withdraw("nvmlInitWithFlags")
    for _ in range(20):
        await asyncio.sleep(0.01)
        assert not starting.done()
    hardware.close_nvml(wanted=False)
    await asyncio.wait_for(starting, 60)
    await hardware.stop()


async def test_a_gpu_that_hangs_costs_only_itself(stub: Stub, start: Start) -> None:
    """NVML D10: one GPU whose calls took 45 s took all GPUs out for a minute."""
    stub.order("gpus", 4)
    hardware = await start(call_budget_s=0.5, hang_s=0.6, recovery=RecoveryRules(quiet_s=1000))
    await until(lambda: len(hardware.samples) == 4)
    changes = heard(hardware)
    stub.order("hang.1")
    await until_reasons(hardware, {uuid(1): GPU_HUNG})
    await until(lambda: set(hardware.samples) == {uuid(0), uuid(2), uuid(3)})
    stub.event(3, xid=79)
    await until(lambda: set(reasons(hardware)) == {uuid(1), uuid(3)}, seen=lambda: reasons(hardware))
    seen = [one.uuid for change in [changes.get_nowait() for _ in range(changes.qsize())] for one in change.health]
    assert seen == [uuid(1), uuid(3)]
    stub.withdraw("hang.1")
    await until(lambda: set(reasons(hardware)) == {uuid(3)}, seen=lambda: reasons(hardware))
    await until(lambda: len(hardware.samples) == 4)


async def test_a_question_that_is_given_up_is_a_failure_of_the_gpu_before_it_counts_as_hung(
    stub: Stub, start: Start
) -> None:
    """With 6 s for each call a GPU answers between two readings, and never hangs for long."""
    hardware = await start(call_budget_s=0.1, hang_s=1000, recovery=RecoveryRules(failures=1))
    await until(lambda: len(hardware.samples) == 2)
    stub.order("hang.0")
    await until_reasons(hardware, {uuid(0): GPU_HUNG})
    stub.withdraw("hang.0")
    await until_reasons(hardware, {})


async def test_several_gpus_may_hang_at_once(stub: Stub, start: Start) -> None:
    stub.order("gpus", 5)
    hardware = await start(call_budget_s=0.5, hang_s=0.6)
    await until(lambda: len(hardware.samples) == 5)
    for index in (0, 2, 4):
        stub.order(f"hang.{index}")
    await until_reasons(hardware, {uuid(index): GPU_HUNG for index in (0, 2, 4)})
    await until(lambda: set(hardware.samples) == {uuid(1), uuid(3)})
    for index in (0, 2, 4):
        stub.withdraw(f"hang.{index}")
    await until_reasons(hardware, {})


async def test_an_agent_starts_beside_a_gpu_that_hangs(stub: Stub, start: Start) -> None:
    stub.order("gpus", 3)
    stub.order("hang.1")
    with structlog.testing.capture_logs() as logs:
        hardware = await start(open_budget_s=0.5)
    assert gpus(hardware) == [uuid(0), uuid(2)]
    (note,) = [entry["error"] for entry in logs if entry["event"] == "discovery_note"]
    assert note.startswith("left out: GPU 1: the NVIDIA driver does not answer about it; see the kernel log")
    await until(lambda: len(hardware.samples) == 2)
    stub.withdraw("hang.1")
    await until(lambda: gpus(hardware) == [uuid(0), uuid(1), uuid(2)], seen=lambda: gpus(hardware))


async def test_a_restarted_agent_keeps_the_health_of_the_others_while_one_gpu_hangs(stub: Stub, start: Start) -> None:
    stub.order("gpus", 3)
    cache = stub.orders / "inventory.json"
    await (await start(cache_path=cache)).stop()
    stub.order("hang.2")
    hardware = await start(cache_path=cache, open_budget_s=0.5)
    changes = heard(hardware)
    await until_reasons(hardware, {uuid(2): GPU_HUNG})
    await until(lambda: set(hardware.samples) == {uuid(0), uuid(1)})
    stub.withdraw("hang.2")
    await until_reasons(hardware, {})
    assert {one.uuid for change in [changes.get_nowait() for _ in range(changes.qsize())] for one in change.health} == {
        uuid(2)
    }


async def test_nvml_is_not_closed_while_a_gpu_hangs(stub: Stub, start: Start) -> None:
    """A thread is inside the library: to unmap it would end the agent."""
    hardware = await start(call_budget_s=0.1)
    stub.order("hang.1")
    await until(lambda: bool(hardware._executor.hung))
    with structlog.testing.capture_logs() as logs:
        hardware.close_nvml(wanted=True)
        await until(lambda: any(entry["event"] == "driver_failed" for entry in logs))
    assert nvml_library.is_mapped()
    stub.withdraw("hang.1")
    await until(lambda: hardware.nvml_closed)
    assert not nvml_library.is_mapped()
