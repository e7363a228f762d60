"""T8: processes are told apart in a pid namespace of their own and in the host's."""

import json
import os
import shutil
import subprocess

from benchmarks.gpu.bench import Bench, killed_at_end
from benchmarks.gpu.checks.common import GIB, MIB, host_nvml, line
from benchmarks.gpu.outcome import Judgement, NotRun

LIMIT = 2 * GIB
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
    with killed_at_end(container.start(*before, bench.program("allocate"), "malloc", "--hold", 1)) as process:
        told = json.loads(line(process))
        slots = container.slots()
        listed = nvml.processes()
        judgement.figures = {
            "pid_inside": told["pid"],
            "slot_pids": [slot.pid for slot in slots],
            "slot_used_mib": [slot.uses[0].used // MIB for slot in slots],
            "host_nvml_lists": {str(pid): size // MIB for pid, size in listed.items()},
        }
    judgement.expect([slot.pid for slot in slots] == [told["pid"]], "its slot is not under its own pid")
    judgement.expect(told["got"] <= LIMIT, f"it got {told['got'] // MIB} MiB")
    charged = sum(slot.uses[0].used for slot in slots)
    judgement.expect(charged >= told["got"], f"charged are {charged // MIB} MiB, held {told['got'] // MIB}")
    again = container.run(bench.program("allocate"), "malloc", "--cycles", 1)
    judgement.figures["next_got_mib"] = again["got"] // MIB
    judgement.expect(again["got"] >= told["got"] - 64 * MIB, "what it held did not come back when it was killed")
    return judgement
