"""What is promised of programs that take all they can get: the slice that their pods asked for, and no more.

In: what each asked for, was limited to and got. Out: one `Promise` for each, held or not, with what was found. Pure.
"""

from collections.abc import Iterable

from scripts.demonstration.document import GreedyContainer, Promise
from scripts.demonstration.promised import promised

BLOCK_BYTES = 256 << 20
REFUSAL = "CUDA_ERROR_OUT_OF_MEMORY"
POINTS = 3.0


def memory_ends_at_the_limit(greedy: Iterable[GreedyContainer]) -> Promise:
    """What was asked for is the limit and what the program hears of; all of it can be had, and nothing beyond."""
    listed = list(greedy)
    wrong = [f"{each.pod} {fault}" for each in listed for fault in _memory_faults(each)]
    return promised("nobody gets more memory than asked for", wrong, f"{len(listed)} stopped with {REFUSAL}")


def time_is_shared_as_asked(greedy: Iterable[GreedyContainer]) -> Promise:
    """Never more; less only by what the program could not use because this machine had no processor for it."""
    listed = list(greedy)
    wrong = [
        f"{each.pod} asked for {each.cores} % of the GPU's time, was limited to {each.limit_cores} % and got "
        f"{each.got_cores:.1f} %"
        for each in listed
        if each.limit_cores != each.cores or not is_near(each)
    ]
    off = max((abs(each.got_cores - each.cores) for each in listed), default=0.0)
    return promised(
        f"everybody gets his share of the GPU's time within {POINTS:g} points", wrong, f"{off:.1f} points off at most"
    )


def is_near(greedy: GreedyContainer) -> bool:
    missed = greedy.limit_cores * min(1.0, greedy.cpu_wait_s / greedy.report.seconds)
    return -POINTS - missed <= greedy.got_cores - greedy.limit_cores <= POINTS


def _memory_faults(greedy: GreedyContainer) -> Iterable[str]:
    asked, report = greedy.blocks * BLOCK_BYTES, greedy.report
    if greedy.limit_bytes != asked:
        yield f"asked for {asked} bytes and has a limit of {greedy.limit_bytes}"
    if report.total_bytes != asked:
        yield f"hears of {report.total_bytes} bytes of memory, not of {asked}"
    if report.refusal != REFUSAL:
        yield f"was stopped with {report.refusal}, not {REFUSAL}"
    if max(greedy.held_bytes, report.got_bytes) > asked:
        yield f"got {max(greedy.held_bytes, report.got_bytes)} bytes of {asked}"
    if report.got_bytes < report.free_bytes:
        yield f"was told of {report.free_bytes} free bytes and got {report.got_bytes} only"
