"""T7: programs behave the same with and without the interposer: forks, captures, refusals in captures, environments."""

import shutil
import sys
from typing import Any

from benchmarks.gpu.bench import Bench, Environment
from benchmarks.gpu.checks.common import GIB, PYTHON_INSIDE, needs_torch
from benchmarks.gpu.outcome import Judgement, NotRun

LIMIT = 4 * GIB
TOOLS = ("compute-sanitizer", "nsys", "ncu")


def same(bench: Bench, name: str) -> Judgement:
    """A function of inside/conduct.py gets the same results natively and in a container with 25 % and 4 GiB."""
    words = [sys.executable, "-m", f"{PYTHON_INSIDE}.conduct", name]
    native = bench.native().run(*words)
    ours = bench.container(memory=LIMIT, cores=25).run(*words)
    judgement = Judgement({"native": native, "ours": ours})
    for key, value in native.items():
        judgement.expect(ours.get(key) == value, f"{key}: natively {value}, with ours {ours.get(key)}")
    return judgement


def refused_in_capture(bench: Bench) -> Judgement:
    """An allocation beyond the limit during a capture is refused, at once or by the graph; afterwards all works."""
    printed = bench.container(memory=LIMIT).run(sys.executable, "-m", f"{PYTHON_INSIDE}.conduct", "refused_in_capture")
    judgement = Judgement(printed)
    refused = [code for code in printed["codes"].values() if code != 0]
    judgement.expect(bool(refused), "an allocation of twice the limit was given")
    judgement.expect(printed["afterwards"] == 0, f"the next capture and launch said {printed['afterwards']}")
    return judgement


def empty_environment(bench: Bench) -> Judgement:
    """`env -i`: only the variables that find the driver; then none at all, with the interposer by its path."""
    judgement = Judgement()
    container = bench.container(memory=LIMIT, cores=50)
    needed = ("LD_LIBRARY_PATH", "VCUDA_DIR", *bench.driver.environment)
    bare = Environment({name: container.variables[name] for name in needed})
    printed = bare.run(bench.program("allocate"), "malloc", "--cycles", 1)
    judgement.figures["got_mib"] = printed["got"] >> 20
    judgement.expect(printed["got"] <= LIMIT, "the limit does not hold")
    code = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).cuInit(0))"
    said = {
        name: Environment({}).run(sys.executable, "-c", code, bench.scratch / name / "libcuda.so.1")
        for name in ("native", "ours")
    }
    judgement.figures["cuInit"] = said
    judgement.expect(said["native"] == said["ours"], f"with nothing at all cuInit says {said}")
    return judgement


def visible_devices(bench: Bench) -> Judgement:
    """The limit belongs to the GPU, whatever its position in CUDA_VISIBLE_DEVICES."""
    judgement = Judgement()
    uuids = [device.uuid for device in bench.driver.devices]
    lists = ["0", "-1", "", "99", uuids[0], *(["1,0", "0,1", f"{uuids[1]},{uuids[0]}"] if len(uuids) > 1 else [])]
    words = [sys.executable, "-m", f"{PYTHON_INSIDE}.conduct", "visible"]
    for each in lists:
        native = bench.native().run(*words, CUDA_VISIBLE_DEVICES=each)
        ours = bench.container(memory=LIMIT).run(*words, CUDA_VISIBLE_DEVICES=each)
        judgement.expect(native["uuids"] == ours["uuids"], f"{each!r}: natively {native}, with ours {ours}")
        for uuid, total in zip(ours["uuids"], ours["totals"], strict=True):
            limited = uuid == bench.device.uuid
            judgement.expect((total == LIMIT) == limited, f"{each!r}: {uuid} has {total} bytes")
        judgement.figures[each or "empty"] = len(ours["uuids"])
    return judgement


def torch(bench: Bench, name: str) -> Judgement:
    printed: dict[str, Any] = bench.container(memory=LIMIT, cores=50).run(
        needs_torch(bench), "-m", f"{PYTHON_INSIDE}.torch_conduct", name, NCCL_CUMEM_ENABLE="1"
    )
    judgement = Judgement(printed)
    judgement.expect(printed["good"], f"{name} went wrong: {printed}")
    return judgement


def tools(bench: Bench) -> Judgement:
    found = [name for name in TOOLS if shutil.which(name)]
    if not found:
        raise NotRun(f"none of {', '.join(TOOLS)} is on this machine")
    judgement, container = Judgement(), bench.container(memory=LIMIT, cores=50)
    for name in found:
        words = {"nsys": ["profile", "--output", str(bench.scratch / "nsys"), "--force-overwrite", "true"]}.get(
            name, []
        )
        process = container.start(name, *words, bench.program("allocate"), "malloc", "--cycles", 1)
        out, errors = process.communicate(timeout=240)
        judgement.figures[name] = process.returncode
        judgement.expect(process.returncode == 0, f"{name}: {(errors or out).strip()[-200:]}")
    return judgement
