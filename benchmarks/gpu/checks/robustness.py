"""T7: programs behave the same with and without the interposer: forks, captures, refusals in captures, environments."""

import shutil
import sys
from typing import Any

from benchmarks.gpu.bench import Bench, Environment, killed_at_end
from benchmarks.gpu.checks.common import GIB, PYTHON_INSIDE, needs_torch
from benchmarks.gpu.outcome import Judgement, NotRun

LIMIT = 4 * GIB
# The GPU belongs to others: nothing here may change its clocks, as ncu does unless it is told otherwise.
TOOLS = {
    "compute-sanitizer": (),
    "nsys": ("profile", "--output", "{scratch}/nsys", "--force-overwrite", "true"),
    "ncu": ("--clock-control", "none"),
}


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
    words = [sys.executable, "-m", f"{PYTHON_INSIDE}.conduct", "refused_in_capture", 2 * LIMIT]
    printed = bench.container(memory=LIMIT).run(*words)
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
    more = [2 * LIMIT] if name == "capture_refused" else []
    printed: dict[str, Any] = bench.container(memory=LIMIT, cores=50).run(
        needs_torch(bench), "-m", f"{PYTHON_INSIDE}.torch_conduct", name, *more, NCCL_CUMEM_ENABLE="1"
    )
    judgement = Judgement(printed)
    judgement.expect(printed["good"], f"{name} went wrong: {printed}")
    return judgement


def tools(bench: Bench) -> Judgement:
    """A tool that does not work here at all, for want of a right or of a GPU, says nothing about the interposer."""
    found = [name for name in TOOLS if shutil.which(name)]
    if not found:
        raise NotRun(f"none of {', '.join(TOOLS)} is on this machine")
    judgement, container = Judgement(), bench.container(memory=LIMIT, cores=50)
    for name in found:
        native, said = _under(bench.native(), name, bench)
        if native != 0:
            judgement.figures[name] = f"natively {native}: {said}"
            continue
        judgement.figures[name], said = _under(container, name, bench)
        judgement.expect(judgement.figures[name] == 0, f"{name}: {said}")
    if all(isinstance(each, str) for each in judgement.figures.values()):
        raise NotRun(f"no tool works here without the interposer: {judgement.figures}")
    return judgement


def _under(environment: Environment, name: str, bench: Bench) -> tuple[int, str]:
    words = [word.format(scratch=bench.scratch) for word in TOOLS[name]]
    with killed_at_end(environment.start(name, *words, bench.program("allocate"), "malloc", "--cycles", 1)) as process:
        out, errors = process.communicate(timeout=120)
    return process.returncode, (errors or out).strip()[-200:]
