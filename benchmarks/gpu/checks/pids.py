"""T8: processes are distinguished in their own PID namespace and in that of the host."""

import json
import os
import shutil
import subprocess
import sys

from benchmarks.gpu.bench import Bench, killed_at_end
from benchmarks.gpu.checks.common import GIB, MIB, PYTHON_INSIDE, host_nvml, line, say
from benchmarks.gpu.outcome import Judgement, NotRun

LIMIT = 2 * GIB
RECOVERED_S = 1.0
ALONE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


def host(bench: Bench) -> Judgement:
    return _hold(bench, [])


def own_namespace(bench: Bench) -> Judgement:
    if shutil.which("unshare") is None:
        raise NotRun("unshare is not on this machine")
    as_user = [] if os.geteuid() == 0 else ["--map-root-user", "--user"]
    words = [*ALONE, *as_user]
    tried = subprocess.run([*words, "true"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        raise NotRun(f"a pid namespace cannot be made here: {tried.stderr.strip()}")
    return _hold(bench, words)


def _hold(bench: Bench, before: list[str]) -> Judgement:
    container, nvml, judgement = bench.container(memory=LIMIT), host_nvml(bench), Judgement()
    words = [sys.executable, "-m", f"{PYTHON_INSIDE}.conduct", "killed_neighbour", bench.program("allocate"), LIMIT]
    with killed_at_end(container.start(*before, *words)) as process:
        printed = json.loads(line(process))
        slots = container.slots()
        listed = {str(pid): size // MIB for pid, size in nvml.processes().items()}
        say(process, "")
        after = json.loads(line(process))
    used = [slot.uses[0].used for slot in slots]
    judgement.figures = {"pid_inside": printed["pid"], "slot_pids": [slot.pid for slot in slots], "host_nvml": listed}
    judgement.figures |= {"got_mib": printed["got"] // MIB, "charged_mib": sum(used) // MIB, "had_again": after}
    judgement.expect([slot.pid for slot in slots] == [printed["pid"]], "its slot is not under its own pid")
    judgement.expect(0 < printed["got"] <= LIMIT, f"it got {printed['got'] // MIB} MiB")
    judgement.expect(sum(used) >= printed["got"], f"charged are {sum(used) // MIB} MiB, held {printed['got'] // MIB}")
    judgement.expect(after["again"] >= printed["got"], "what it held cannot be had again after it was killed")
    judgement.expect(after["seconds"] <= RECOVERED_S, f"it was had again after {after['seconds']} s")
    return judgement
