"""`Hardware` as the agent uses it, on a driver that misbehaves about single GPUs on order."""

import asyncio
import time
from pathlib import Path

import pytest
import structlog.testing

from deviceplugin.hardware.health import RecoveryRules, XidPolicy
from deviceplugin.model.gpu import GpuUuid, Health
from deviceplugin.model.topology import Level
from tests.hardware.conftest import Stub, uuid
from tests.hardware.starting import Start, answers, gpus, heard, reasons, until_reasons
from tests.waiting import until


async def test_start_comes_back_with_the_gpus_and_samples_follow(start: Start) -> None:
    hardware = await start()
    inventory = hardware.inventory
    assert inventory is not None
    assert [(gpu.uuid, gpu.minor, gpu.model, gpu.blocks) for gpu in inventory.gpus] == [
        (uuid(0), 0, "Stub 0", 62),
        (uuid(1), 1, "Stub 1", 62),
    ]
    assert inventory.topology.link(0, 1).level is Level.PIX
    assert (inventory.driver.version, inventory.driver.cuda) == ("390.157", (9, 1))
    await until(lambda: len(hardware.samples) == 2)
    assert hardware.samples[GpuUuid(uuid(1))].utilization_percent == 7
    assert answers(hardware)
    assert reasons(hardware) == {}


async def test_a_critical_xid_makes_its_gpu_unhealthy_until_it_was_quiet_for_long_enough(
    stub: Stub, start: Start
) -> None:
    hardware = await start()
    struck = time.monotonic()
    changes = heard(hardware)
    stub.event(1, xid=79)
    first = await asyncio.wait_for(changes.get(), 60)
    assert first.inventory.health == {uuid(1): Health(False, "XID 79 (GPU has fallen off the bus)")}
    assert [(one.uuid, one.new.healthy) for one in first.health] == [(uuid(1), False)]
    assert not first.gpus_changed
    second = await asyncio.wait_for(changes.get(), 60)
    assert second.inventory.health == {}
    assert time.monotonic() - struck > 0.2


async def test_a_double_bit_error_is_critical_and_the_operator_decides_about_xids(stub: Stub, start: Start) -> None:
    hardware = await start(
        recovery=RecoveryRules(quiet_s=1000), xids=XidPolicy(ignored=frozenset({79}), critical=frozenset({31}))
    )
    stub.event(0, xid=79)
    await until(lambda: stub.event_taken)
    stub.event(0)
    await until_reasons(hardware, {uuid(0): "double-bit ECC error"})
    stub.event(1, xid=31)
    await until(lambda: reasons(hardware).get(GpuUuid(uuid(1))) == "XID 31 (GPU memory page fault)")


async def test_a_passing_error_makes_nothing_unhealthy_and_a_lasting_one_does(stub: Stub, start: Start) -> None:
    hardware = await start(recovery=RecoveryRules(failures=5))
    changes = heard(hardware)
    stub.order("nvmlDeviceGetMemoryInfo.0", 999)
    change = await asyncio.wait_for(changes.get(), 60)
    assert change.inventory.health == {uuid(0): Health(False, "Unknown Error")}


async def test_a_gpu_that_is_unhealthy_from_the_start_is_left_out_where_it_was_never_seen(
    stub: Stub, start: Start
) -> None:
    stub.order("nvmlDeviceGetHandleByIndex_v2.0", 15)
    with structlog.testing.capture_logs() as logs:
        hardware = await start()
    assert gpus(hardware) == [uuid(1)]
    (note,) = [entry["error"] for entry in logs if entry["event"] == "discovery_note"]
    assert note == (
        "left out: nvmlDeviceGetHandleByIndex failed for GPU 0: NVML says 'GPU is lost' (15); "
        "reset the GPU or reboot the node"
    )
    stub.withdraw("nvmlDeviceGetHandleByIndex_v2.0")
    await until(lambda: gpus(hardware) == [uuid(0), uuid(1)], seen=lambda: gpus(hardware))


async def test_a_gpu_without_memory_of_its_own_is_left_out_with_a_sentence_of_its_own(stub: Stub, start: Start) -> None:
    """NVML D7: the advice was to look into the kernel's log, where nothing is."""
    stub.order("nvmlDeviceGetMemoryInfo.1", 3)
    with structlog.testing.capture_logs() as logs:
        hardware = await start()
    assert gpus(hardware) == [uuid(0)]
    (note,) = [entry["error"] for entry in logs if entry["event"] == "discovery_note"]
    assert note == (
        f"left out: GPU 1 ({uuid(1)}) cannot be shared: NVML reports no memory for it, because it uses the memory of "
        "the host, as in GB10 and Jetson; use NVIDIA's device plugin on this node"
    )


async def test_what_a_platform_does_not_have_is_no_fault_of_the_gpu(
    stub: Stub, start: Start, subtests: pytest.Subtests
) -> None:
    """WSL 2 has no minor numbers (k8s-device-plugin#332, #646); no log of a kernel says anything of it."""
    for function in ("nvmlDeviceGetMinorNumber", "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetName"):
        with subtests.test(function=function), structlog.testing.capture_logs() as logs:
            stub.order(f"{function}.1", 3)
            hardware = await start()
            stub.withdraw(f"{function}.1")
            assert gpus(hardware) == [uuid(0)]
            (note,) = [entry["error"] for entry in logs if entry["event"] == "discovery_note"]
            assert note.startswith(
                f"left out: GPU 1 ({uuid(1)}) cannot be shared: {function.removesuffix('_v3')} is not"
            )
            assert "dmesg" not in note
            await hardware.stop()


async def test_a_gpu_of_unknown_place_is_offered_nevertheless(stub: Stub, start: Start) -> None:
    """NVML C: the question for the NUMA node, which other drivers do not know, left the GPU out."""
    stub.order("nvmlDeviceGetMemoryAffinity.0", 999)
    hardware = await start()
    assert gpus(hardware) == [uuid(0), uuid(1)]
    assert hardware.inventory is not None
    assert hardware.inventory.gpus[0].numa is None


async def test_an_event_set_that_cannot_be_made_is_tried_again(stub: Stub, start: Start) -> None:
    """NVML C: the agent did not start."""
    stub.order("nvmlEventSetCreate", 17)
    with structlog.testing.capture_logs() as logs:
        hardware = await start(retry_first_s=0.05)
        await until(lambda: any(entry["event"] == "nvml_events_failed" for entry in logs))
    assert reasons(hardware) == {}
    stub.withdraw("nvmlEventSetCreate")
    stub.event(1, xid=79)
    await until(lambda: list(reasons(hardware)) == [uuid(1)], seen=lambda: reasons(hardware))


async def test_a_gpu_whose_name_is_no_text_does_not_spoil_the_others(stub: Stub, start: Start) -> None:
    stub.order("garbled", 1)
    assert gpus(await start()) == [uuid(0)]


async def test_nvlinks_that_come_up_after_the_start_and_go_down_are_noticed(stub: Stub, start: Start) -> None:
    """NVML D2: on machines with NVSwitches the agent and the fabric manager start together."""
    for index in range(2):
        stub.order(f"nvlink.{index}", "00000000:C4:00.0 2\n" * 4)
    stub.order("p2p", 5)
    hardware = await start()

    def nvlinks() -> int:
        assert hardware.inventory is not None
        return hardware.inventory.topology.link(0, 1).nvlinks

    assert nvlinks() == 0
    changes = heard(hardware)
    stub.order("p2p", 0)
    assert (await asyncio.wait_for(changes.get(), 60)).gpus_changed
    assert nvlinks() == 4
    stub.order("nvlink.1", "00000000:C4:00.0 2\n")
    await until(lambda: nvlinks() == 1)
    stub.withdraw("nvlink.1")
    await until(lambda: nvlinks() == 0)


async def test_a_gpu_that_is_plugged_in_becomes_known(stub: Stub, start: Start) -> None:
    hardware = await start()
    changes = heard(hardware)
    stub.order("gpus", 3)
    change = await asyncio.wait_for(changes.get(), 60)
    assert change.gpus_changed
    assert [gpu.uuid for gpu in change.inventory.gpus] == [uuid(0), uuid(1), uuid(2)]


async def test_a_device_that_the_driver_takes_on_leads_to_a_new_discovery(stub: Stub, start: Start) -> None:
    stub.order("nvmlDeviceGetHandleByIndex_v2.1", 15)
    hardware = await start(rescan_period_s=0.05)
    assert gpus(hardware) == [uuid(0)]
    stub.withdraw("nvmlDeviceGetHandleByIndex_v2.1")
    (stub.orders / "sys/bus/pci/drivers/nvidia/0000:02:00.0").mkdir(parents=True)
    await until(lambda: gpus(hardware) == [uuid(0), uuid(1)], seen=lambda: gpus(hardware))


async def test_events_that_cannot_be_read_are_no_verdict_and_no_busy_loop(stub: Stub, start: Start) -> None:
    stub.order("nvmlEventSetWait_v2", 999)
    began = time.monotonic()
    hardware = await start(retry_first_s=0.05, retry_most_s=10.0)
    await until(lambda: stub.waits >= 9)  # two for each try: the old set is asked once more before it goes
    assert time.monotonic() - began > 0.7, "pauses of 0.05, 0.1, 0.2 and 0.4 s lie before the fifth try"
    assert reasons(hardware) == {}
    stub.withdraw("nvmlEventSetWait_v2")
    stub.event(1, xid=79)
    await until(lambda: list(reasons(hardware)) == [uuid(1)], seen=lambda: reasons(hardware))


async def test_events_that_a_gpu_refused_are_asked_for_again(stub: Stub, start: Start) -> None:
    """NVML C: its XIDs were not heard until the agent was restarted."""
    stub.order("nvmlDeviceRegisterEvents.1", 999)
    registered = stub.orders / "registered.1"
    with structlog.testing.capture_logs() as logs:
        hardware = await start()
        before = stub.waits
        await until(lambda: stub.waits > before + 5)
    assert [entry["gpu"] for entry in logs if entry["event"] == "gpu_events_unavailable"] == [uuid(1)], "said once"
    assert (registered.exists(), reasons(hardware)) == (False, {})
    stub.withdraw("nvmlDeviceRegisterEvents.1")
    await until(registered.exists)


async def test_a_gpu_without_events_is_judged_by_its_answers(stub: Stub, start: Start) -> None:
    stub.order("nvmlDeviceRegisterEvents.1", 3)
    hardware = await start()
    assert reasons(hardware) == {}
    stub.order("nvmlDeviceGetMemoryInfo.1", 15)
    await until_reasons(hardware, {uuid(1): "GPU is lost"})


async def test_a_cache_that_cannot_be_written_costs_nothing_else(stub: Stub, start: Start, short_tmp: Path) -> None:
    (short_tmp / "file").touch()
    hardware = await start(cache_path=short_tmp / "file/inventory.json")
    assert gpus(hardware) == [uuid(0), uuid(1)]
