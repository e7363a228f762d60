"""The checks of a node's driver: kernel module, NVML, the GPUs' modes, libraries for containers, device nodes.

In: a `NodeSubject`. Out: findings. What is looked for and where is the agent's own code (`hardware`, `driver_mirror`).
"""

import asyncio
import os
import stat
from collections import Counter
from pathlib import Path

from deviceplugin.agent.mirroring import mirror_options
from deviceplugin.cli.doctor.findings import CheckResult, count, failed, named, ok, skipped, warning
from deviceplugin.cli.doctor.node import NodeSubject
from deviceplugin.container.driver_mirror.components import CUDA, NVML, find_interposers
from deviceplugin.container.driver_mirror.plan import Chosen, MirrorPlan, make_plan
from deviceplugin.container.driver_mirror.search import choose, driver_version, find_libraries
from deviceplugin.driver_root import DriverRoot
from deviceplugin.errors import HardwareError
from deviceplugin.model.gpu import NEWEST_CUDA, ComputeMode

_CONTROL = ("nvidiactl", "nvidia-uvm")


async def module(subject: NodeSubject) -> CheckResult:
    settings = subject.settings.driver
    if not subject.loaded:
        made = warning if settings.wait_for_driver else failed
        return made(
            f"no NVIDIA kernel module is loaded: {settings.version_file} is not there",
            "install the driver, or load it with modprobe nvidia; with --wait-for-driver the agent waits for it",
        )
    return ok(f"kernel module of driver {subject.loaded}")


async def nvml(subject: NodeSubject) -> CheckResult:
    settings = subject.settings.driver
    try:
        found = await subject.discovery()
    except HardwareError as error:
        made = warning if settings.wait_for_driver else failed
        return made(error.message, "correct --driver-root, or the driver; see dmesg for NVRM")
    if found.failed or found.notes:
        return failed(
            f"{len(found.devices)} of {count(found.counted, 'GPU')} answer: "
            f"{named([*found.failed.values(), *found.notes])}",
            "see dmesg for NVRM and XIDs; reset the GPU or reboot the node",
        )
    if not found.gpus:
        return failed("NVML opens and lists no GPU", "take the agent's label off this node, or see dmesg for NVRM")
    models = Counter(gpu.model for gpu in found.gpus)
    shown = named([f"{number} × {model}" for model, number in sorted(models.items())])
    major, minor = found.driver.cuda
    if subject.loaded and found.driver.version != subject.loaded:
        return failed(
            f"NVML is of driver {found.driver.version} and the loaded kernel module of {subject.loaded}",
            "load the module of the installed driver again, or reboot the node",
        )
    if not found.driver.is_known:
        newest = ".".join(map(str, NEWEST_CUDA))
        return warning(
            f"{shown}; CUDA {major}.{minor} of the driver is newer than {newest}, all of which vcuda's library knows",
            "use a driver in docs/compatibility.md, or a newer vcuda",
        )
    return ok(f"{shown}; driver {found.driver.version}, CUDA {major}.{minor}")


async def modes(subject: NodeSubject) -> CheckResult:
    try:
        gpus = (await subject.discovery()).gpus
    except HardwareError:
        return skipped("NVML does not answer")
    mig = [f"GPU {gpu.minor}" for gpu in gpus if gpu.mig_enabled]
    prohibited = [f"GPU {gpu.minor}" for gpu in gpus if gpu.compute_mode is ComputeMode.PROHIBITED]
    if mig:
        return warning(
            f"{count(len(mig), 'GPU')} in MIG mode, which get no pods: {named(mig)}",
            "nvidia-smi -i GPU -mig 0, or leave the GPU to NVIDIA's device plugin",
        )
    if prohibited:
        return warning(
            f"{count(len(prohibited), 'GPU')} in compute mode prohibited, which get no pods: {named(prohibited)}",
            "nvidia-smi -i GPU -c DEFAULT",
        )
    return ok("no GPU is in MIG mode, or closed to computing")


async def libraries(subject: NodeSubject) -> CheckResult:
    """What the mirror for containers would have."""
    plan, trouble = await asyncio.to_thread(_plan, subject)
    if plan.refusal:
        return failed(f"no share can start: {plan.refusal}", "correct --driver-root or --library-path")
    if plan.missing:
        return warning(
            f"libraries of the driver are missing for containers: {named(plan.missing)}",
            "install the driver's compute libraries, or correct --driver-root",
        )
    if trouble:
        return warning(named(trouble), "install the driver again, or load its kernel module again")
    return ok(f"libcuda and NVML of driver {plan.driver}, and vcuda's library, for containers")


def _plan(subject: NodeSubject) -> tuple[MirrorPlan, tuple[str, ...]]:
    options = mirror_options(subject.settings.driver)
    prefixes = (CUDA, NVML, *options.shared.libraries, *options.whole.libraries)
    found = find_libraries(DriverRoot(options.root), prefixes, options.machine, loaded=subject.loaded)
    chosen = Chosen(
        choose(found.libraries, loaded=subject.loaded),
        {},
        find_interposers(options.library, options.machine),
        driver=driver_version(found.libraries, loaded=subject.loaded),
        root=options.root,
    )
    return make_plan(chosen, shared=options.shared, whole=options.whole), found.trouble


async def device_nodes(subject: NodeSubject) -> CheckResult:
    try:
        gpus = (await subject.discovery()).gpus
    except HardwareError:
        return skipped("NVML does not answer")
    directory = subject.settings.driver.device_root / "dev"
    wanted = [*_CONTROL, *(f"nvidia{gpu.minor}" for gpu in gpus)]
    missing = [str(directory / name) for name in wanted if not (directory / name).exists()]
    if missing:
        return failed(
            f"{count(len(missing), 'device node')} missing: {named(missing)}",
            "nvidia-modprobe -u -c 0 makes them; in a container mount the node's /dev",
        )
    if unlinked := [name for name in wanted if _lacks_link(directory, directory / name)]:
        return warning(
            f"{directory}/char has no link for {named(unlinked)}: where runc lets systemd make the control groups, "
            "containers that run lose these device nodes at the next `systemctl daemon-reload`",
            "nvidia-ctk system create-dev-char-symlinks --create-all makes the links; again after each boot",
        )
    return ok(f"{count(len(wanted), 'device node')} in {directory}")


def _lacks_link(directory: Path, node: Path) -> bool:
    """systemd knows a device by /dev/char/MAJOR:MINOR alone, and NVIDIA's driver makes no link there."""
    found = node.stat()
    link = directory / "char" / f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}"
    return stat.S_ISCHR(found.st_mode) and not link.exists()
