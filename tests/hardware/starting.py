"""A `Hardware` for tests: everything fast, and nothing of this machine."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol, TypedDict, Unpack

from deviceplugin.hardware.health import RecoveryRules, XidPolicy
from deviceplugin.hardware.node import Hardware, HardwareOptions
from deviceplugin.hardware.pci import ModuleTools
from deviceplugin.hardware.state import InventoryChange
from deviceplugin.model.gpu import GpuUuid
from deviceplugin.structs import replace
from tests.waiting import PATIENCE_S, until


class Changed(TypedDict, total=False):
    """The options that tests set."""

    library: Path
    cache_path: Path
    sample_period_s: float
    rescan_period_s: float
    wait_for_driver: bool
    modules: ModuleTools
    xids: XidPolicy
    recovery: RecoveryRules
    call_budget_s: float
    open_budget_s: float
    hang_s: float
    retry_first_s: float
    retry_most_s: float


class Start(Protocol):
    """Makes a `Hardware` and starts it."""

    def __call__(self, **changed: Unpack[Changed]) -> Coroutine[None, None, Hardware]: ...


def options(driver: Path, node: Path, **changed: Unpack[Changed]) -> HardwareOptions:
    """`node` is a directory for this node's sysfs and device nodes."""
    fast = HardwareOptions(
        library=driver,
        sys_root=node / "sys",
        device_root=node / "dev",
        proc_root=node / "proc",
        sample_period_s=0.02,
        rescan_period_s=0.05,
        retry_first_s=0.02,
        retry_most_s=0.2,
        recovery=RecoveryRules(quiet_s=0.2, passes=3, failures=3),
    )
    return replace(fast, **changed)


def make_device_nodes(directory: Path) -> None:
    directory.mkdir(exist_ok=True)
    for name in ("nvidiactl", "nvidia-uvm", *(f"nvidia{minor}" for minor in range(64))):
        (directory / name).touch()


@asynccontextmanager
async def starting(driver: Path, node: Path) -> AsyncIterator[Start]:
    """Whatever was started is stopped at the end."""
    running: list[Hardware] = []
    make_device_nodes(node / "dev")

    async def begin(**changed: Unpack[Changed]) -> Hardware:
        running.append(Hardware(options(driver, node, **changed)))
        await running[-1].start()
        return running[-1]

    try:
        yield begin
    finally:
        for hardware in running:
            await _unstuck(hardware)
            await hardware.stop()  # else the thread would come back into a library that is unmapped


async def _unstuck(hardware: Hardware) -> None:
    await until(lambda: hardware._executor.stuck_for == 0.0 and not hardware._executor.hung)


def answers(hardware: Hardware) -> bool:
    """The driver itself has answered, and not only the cache, and it does not hang."""
    return hardware._session is not None and hardware._executor.stuck_for == 0.0 and not hardware._executor.hung


def reasons(hardware: Hardware) -> dict[GpuUuid, str]:
    """Why each GPU that is not healthy is not."""
    assert hardware.inventory is not None
    return {one: health.reason for one, health in hardware.inventory.health.items()}


async def until_reasons(hardware: Hardware, wanted: Mapping[str, str], *, within: float = PATIENCE_S) -> None:
    await until(lambda: reasons(hardware) == wanted, seen=lambda: reasons(hardware), within=within)


def gpus(hardware: Hardware) -> list[GpuUuid]:
    assert hardware.inventory is not None
    return [gpu.uuid for gpu in hardware.inventory.gpus]


def heard(hardware: Hardware) -> asyncio.Queue[InventoryChange]:
    """Every change from now on."""
    changes: asyncio.Queue[InventoryChange] = asyncio.Queue()
    hardware.subscribe(changes.put_nowait)
    return changes
