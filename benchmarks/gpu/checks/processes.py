"""T3: processes of one container share its limit, and memory of a killed process becomes available again."""

import json
import time

from benchmarks.gpu.bench import Bench, Process
from benchmarks.gpu.checks.common import GIB, MIB, line, say
from benchmarks.gpu.outcome import Judgement

LIMIT = 8 * GIB
PROCESSES = 4
RECOVERED_S = 1.0
_DEADLINE_S = 20.0


def together(bench: Bench) -> Judgement:
    container, judgement = bench.container(memory=LIMIT), Judgement()
    started = [container.start(bench.program("allocate"), "malloc", "--hold", 2) for _ in range(PROCESSES)]
    try:
        for process in started:
            line(process)  # it has its context: a container that is full gives no room for one
        for process in started:
            say(process, "")
        got = [json.loads(line(process))["got"] for process in started]
        judgement.figures = {"got_mib": [size // MIB for size in got], "sum_mib": sum(got) // MIB}
        judgement.expect(sum(got) <= LIMIT, f"together they got {sum(got) // MIB} MiB")
        judgement.expect(sum(got) >= LIMIT // 2, f"together they got {sum(got) // MIB} MiB, less than half")
        most = max(range(PROCESSES), key=lambda i: got[i])
        started[most].kill()
        killed = time.monotonic()
        rest = [process for i, process in enumerate(started) if i != most]
        took = regained(rest[0], got[most] * 3 // 4, killed)
        judgement.figures |= {"regained_after_s": round(took, 3) if took else "never"}
        judgement.expect(
            took is not None and took <= RECOVERED_S, f"three quarters of its memory came back after {took} s"
        )
    finally:
        for process in started:
            process.kill()
            process.communicate()
    return judgement


def regained(process: Process, wanted: int, since: float) -> float | None:
    """Seconds until another process can allocate that much more; None if it never can."""
    say(process, "")
    first = json.loads(line(process))["got"]
    base = first if first < wanted else 0
    while (elapsed := time.monotonic() - since) < _DEADLINE_S:
        if first - base >= wanted:
            return elapsed
        time.sleep(0.02)
        say(process, "")
        first = json.loads(line(process))["got"]
    return None
