"""What the watcher reads of a process, without the agent's help."""

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from subprocess import PIPE

from tests.e2e.soak.running import read

ASKED = {"SOAK_POD": "a", "SOAK_CONTAINER": "main", "SOAK_CORES": "10", "SOAK_BLOCKS": "5"}


@contextmanager
def process(environment: Mapping[str, str]) -> Iterator[int]:
    with subprocess.Popen(["/bin/cat"], env=environment, stdin=PIPE, stdout=PIPE) as started:
        assert started.stdin is not None
        assert started.stdout is not None
        try:
            # It must run for sure: Linux lets Popen return before /proc shows the environment of the new program.
            started.stdin.write(b"\n")
            started.stdin.flush()
            started.stdout.readline()
            yield started.pid
        finally:
            started.kill()


def test_a_process_that_asked_for_a_gpu_and_has_none_is_seen_so() -> None:
    with process(ASKED) as pid:
        found = read("uid-a", pid)

    assert found is not None
    assert (found.where, found.cores, found.blocks) == ("a/main (uid-a)", 10, 5)
    assert (found.gpus, found.grant, found.limits) == ((), "", None)


def test_what_is_visible_to_it_is_read_from_its_environment() -> None:
    with process({**ASKED, "NVIDIA_VISIBLE_DEVICES": "GPU-2,GPU-1"}) as pid:
        found = read("uid-a", pid)

    assert found is not None
    assert found.gpus == ("GPU-1", "GPU-2")


def test_other_processes_and_ended_ones_are_no_containers() -> None:
    with process({}) as pid:
        assert read("uid-a", pid) is None
    assert read("uid-a", pid) is None
