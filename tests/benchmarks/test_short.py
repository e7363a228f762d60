"""Every program under benchmarks/ runs in its short form, prints the documented keys, and fails in one sentence."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE

import pytest

from tests.own_network import own_network
from tests.waiting import PATIENCE_S, eventually

REPOSITORY = Path(__file__).resolve().parents[2]
DECISION = {"gpus", "asked", "links", "ms"}
SHARE = {"workload", "limit", "achieved"}
HIDING = {"hiding", "limit", "honest", "accused", "unwatched", "watched", "found"}
RUN = {"workload", "mix", "who", "seed", "at_100", "at_130", "processor_seconds"}
AGENT = {
    "allocate_whole_ratio", "allocate_whole_ratio_min", "allocate_whole_ratio_max", "allocate_ratio", "prestart_ratio",
    "pods_call_ms", "preferred_p99_ms", "bare_preferred_p99_ms", "idle_cpu_percent", "rss_mib", "ready_s",
    "allocate_ms", "bare_allocate_ms", "prestart_ms", "bare_prestart_ms", "ids", "pods", "turns",
}  # fmt: skip
LIBRARY = {
    f"{case}_{figure}_ns"
    for case in ("unlimited", "limited", "alloc_free", "unlimited_graph", "limited_graph")
    for figure in ("extra", "direct", "worst_extra")
} | {
    "unlimited_calls", "unlimited_graph_calls", "limited_clock_reads", "limited_graph_clock_reads",
    "alloc_free_clock_reads", "indirect_call_ns", "clock_read_ns",
}  # fmt: skip
EXTENDER = {
    "nodes", "running_pods", "ready_s", "rss_ready_mib", "rss_mib", "peak_rss_mib", "cpu_ms_a_pair", "names", "pairs",
    "filter_p50_ms", "filter_p99_ms", "filter_busy_p99_ms", "bind_calm_p99_ms", "bind_p50_ms", "bind_p99_ms",
    "pairs_per_s", "webhook_p50_ms", "webhook_p99_ms", "harness_percent", "server_percent", "turns",
    "waiting_pods", "waiting_rss_mib", "waiting_kib_a_pod", "waiting_longest_ms", "claims", "claims_rss_mib",
    "claims_longest_ms",
    "empty_filter_p50_ms", "empty_filter_p99_ms", "empty_bind_p50_ms", "empty_bind_p99_ms", "empty_pairs_per_s",
} | {f"{what}_ratio{which}" for what in ("filter", "bind", "pairs") for which in ("", "_least", "_most")}  # fmt: skip
OPERATOR_COMMANDS = {"nodes", "least_s", "use_order_cpu_s"} | {
    f"{command}_{figure}"
    for command in (
        "nodes", "node", "pods", "pods_json", "explain", "top_nodes", "top_gpus", "top_pods",
        "screen_nodes", "screen_gpus", "screen_pods", "screen_gpus_by_use",
        "screen_nodes_used", "screen_gpus_used", "screen_pods_used", "screen_gpus_by_use_used",
    )
    for figure in ("s", "ratio")
}  # fmt: skip

DRA = {
    f"{prefix}{kind}_{figure}"
    for kind in ("prepare", "unprepare", "burst_prepare", "burst_unprepare")
    for prefix, figure in (
        ("", "ms"), ("", "p99_ms"), ("bare_", "ms"), ("bare_", "p99_ms"),
        ("", "over_bare_ms"), ("", "over_bare_ms_min"), ("", "over_bare_ms_max"),
        ("", "ratio"), ("", "ratio_min"), ("", "ratio_max"),
    )
} | {
    "allocate_ms", "prestart_ms", "rss_mib", "plain_rss_mib", "rss_more_mib", "ready_s", "plain_ready_s",
    "idle_cpu_percent", "plain_idle_cpu_percent", "turns", "claims", "load",
}  # fmt: skip
DRA_PODS = {f"{kind}_{figure}" for kind in ("plain", "claim", "bare") for figure in ("pods_per_s", "bound_s")} | {
    f"pods_{ratio}{which}" for ratio in ("ratio", "bare_ratio", "over_bare_ratio") for which in ("", "_min", "_max")
} | {"pods", "pods_turns", "kubelet_prepare_ms", "kubelet_bare_prepare_ms"}  # fmt: skip


VOLCANO = {
    "session_s", "empty_session_s", "session_ratio", "session_ratio_least", "session_ratio_most", "predicates",
    "predicate_p50_ms", "predicate_p99_ms", "empty_predicate_p50_ms", "empty_predicate_p99_ms", "cpu_ms_a_predicate",
    "body_kib",
}  # fmt: skip


DEAREST = {"calm_ms", "longest_loop_ms", "longest_answer_ms", "peak_rss_mib"} | {
    f"{verb}_{what}_{figure}_ms"
    for verb, objects in (
        ("filter", ("1", "64", "64_mixed", "64_inits", "17_together", "9_together", "linked", "named", "1000",
                    "beside_nominated")),
        ("review", ("1", "1000_containers", "100_volumes", "5000_volumes", "20000_volumes", "named")),
    )
    for what in objects
    for figure in ("loop", "answer")
}  # fmt: skip


PAGE = {
    "nodes", "pods", "waiting", "rows_s", "live_s", "open_private_mib", "tour_private_mib", "tour_pss_mib",
    "collected_private_mib", "heap_mib",
}  # fmt: skip


def run(program: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"benchmarks.{program}", *words]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)


PROGRAMS = {
    "agent": AGENT,
    "dra": DRA,
    "extender": EXTENDER,
    "dearest": DEAREST,
    "volcano": VOLCANO,
    "library": LIBRARY,
    "operator_commands": OPERATOR_COMMANDS,
    "placement": DECISION,
    "sharing": SHARE,
    "hiding": HIDING,
    "traces.held_out": RUN,
}


def printed_by(program: str) -> set[str]:
    """The keys of each row."""
    done = run(program, "--short", "--output", "json")
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    first, *more = printed if isinstance(printed, list) else [printed]
    assert all(row.keys() == first.keys() for row in more)
    return set(first)


@pytest.mark.timeout(300)  # a busy machine makes a short form long, not wrong
@pytest.mark.parametrize(("program", "keys"), PROGRAMS.items(), ids=PROGRAMS)
def test_the_short_form_prints_the_keys_of_the_full_one(program: str, keys: set[str]) -> None:
    assert printed_by(program) == keys


@pytest.mark.timeout(300)
def test_the_short_form_of_the_page_does_so_too(chromium: None) -> None:
    with own_network():
        assert printed_by("page") == PAGE


def test_the_short_form_prints_text_too() -> None:
    done = run("traces.held_out", "--short")
    assert done.returncode == 0, done.stderr
    assert {line.split()[0] for line in done.stdout.splitlines()} == RUN


def test_an_error_is_one_sentence_and_an_exit_status() -> None:
    done = run("traces.held_out", "/nowhere", "/nowhere/results", "default:as-is:binpack:1")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("benchmark: /nowhere/")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.timeout(300)
def test_a_benchmark_that_is_ended_ends_what_it_started(number: int) -> None:
    command = [sys.executable, "-m", "benchmarks.volcano", "--short"]
    with subprocess.Popen(command, cwd=REPOSITORY, stderr=PIPE, text=True, start_new_session=True) as process:
        assert eventually(lambda: len(of_session(process.pid)) > 2)
        process.send_signal(number)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (1, "benchmark: interrupted\n")
    assert of_session(process.pid) == []


def test_a_program_whose_starter_is_gone_says_nothing_of_it() -> None:
    """The one that is started may be about to say that it is ready when the benchmark is interrupted."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as gone:
        command = [sys.executable, "-c", "from benchmarks.command import announce; announce('ready')"]
        done = subprocess.run(command, cwd=REPOSITORY, stdout=gone, stderr=PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def of_session(leader: int) -> list[int]:
    """The processes that a leader and its children started, zombies aside."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended meanwhile
            state, _, _, session = path.read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state != "Z":
                found.append(int(path.parent.name))
    return found


def test_an_unexpected_error_of_the_gpu_program_is_one_sentence_too() -> None:
    broken = "def fail(scratch): raise OSError('no space left')"
    start = "from benchmarks.gpu import build; build.build = fail; import runpy"
    run_it = "runpy.run_module('benchmarks.gpu', run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", f"{broken}\n{start}\n{run_it}"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "benchmark: no space left; VCUDA_DEBUG=1 shows where\n"


def test_every_program_that_can_be_called_has_a_short_form() -> None:
    """Those above have run in it. Processes that a benchmark starts for itself have no options; the GPU's programs run
    inside a container.
    """
    parts = {"bare", "bare_dra", "pods_call", "cluster.agents", "cluster.empty", "cluster.stub", "gpu.single"}
    parts |= {"traces.example", "page", *PROGRAMS}
    for path in (REPOSITORY / "benchmarks").rglob("*.py"):
        name = ".".join(path.relative_to(REPOSITORY / "benchmarks").with_suffix("").parts)
        if 'if __name__ == "__main__"' in path.read_text() and name not in parts and "inside" not in name:
            assert "--short" in run(name, "--help").stdout, name


def test_the_example_trace_is_made_by_its_program(tmp_path: Path) -> None:
    from benchmarks.traces import example

    example.main(tmp_path)
    for name in ("example-nodes.csv", "example-pods.csv"):
        assert (tmp_path / name).read_bytes() == (REPOSITORY / "benchmarks/traces" / name).read_bytes()
