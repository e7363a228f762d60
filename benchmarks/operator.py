"""How long an operator waits for `vcuda nodes`, `top`, `pods`, `node` and `explain` in a large cluster.

Each command is a process of its own, as an operator starts it: it connects by TLS, reads all pages, and prints. Output
(keys of `--output json`): `<command>_s`, the median of the rounds; `<command>_ratio`, the same over the median of
`vcuda version --client` (`least_s`), which starts the same program and asks nobody. Commands and `least` run by turns.
`explain` is of a waiting pod about which kube-scheduler has not asked, so that the scheduler evaluates every node.

    python -m benchmarks.operator [--nodes N] [--rounds N] [--output json] [--short]
"""

import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from statistics import median

from benchmarks.cluster import fleet
from benchmarks.cluster.measured import PROGRAM, Measured, measured_scheduler
from benchmarks.cluster.stub import PODS_A_NODE, stub_server
from benchmarks.command import BenchmarkError, ends_in_one_sentence, options, show
from sandbox.apiserver.kubeconfig import write_kubeconfig

SHORT = (20, 1)
LEAST = ("version", "--client")
COMMANDS = {
    "nodes": ("nodes",),
    "node": ("node", fleet.node_name(0)),
    "pods": ("pods", "-A"),
    "pods_json": ("pods", "-A", "-o", "json"),
    "top_nodes": ("top", "nodes", "--once"),
    "top_gpus": ("top", "gpus", "--once"),
    "explain": ("explain", f"default/{fleet.pending_name(0)}"),
}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--nodes", type=int, default=5_000, help="nodes of eight GPUs each (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=9, help="of every command (default: %(default)s)")
    given = parser.parse_args()
    if given.short:
        given.nodes, given.rounds = SHORT
    with tempfile.TemporaryDirectory(prefix="vx-", dir="/tmp") as folder:
        show(measure(Path(folder), given.nodes, given.rounds), given.output)


def measure(folder: Path, nodes: int, rounds: int) -> dict[str, float]:
    with stub_server(nodes, nodes * PODS_A_NODE) as (stub, _):
        kubeconfig = write_kubeconfig(folder / "kubeconfig", stub)
        with measured_scheduler(folder, kubeconfig, core=None) as server:
            urllib.request.urlopen(urllib.request.Request(f"{stub}/bench/pods?from=0&to=1", method="POST")).close()
            _wait_known(server)
            times: dict[str, list[float]] = {name: [] for name in ("least", *COMMANDS)}
            for _ in range(rounds):
                times["least"].append(_seconds(LEAST))
                for name, words in COMMANDS.items():
                    times[name].append(_seconds((*words, *_address(server))))
    least = median(times.pop("least"))
    found = {name: median(seconds) for name, seconds in times.items()}
    return {
        "nodes": nodes,
        "least_s": least,
        **{f"{name}_s": seconds for name, seconds in found.items()},
        **{f"{name}_ratio": seconds / least for name, seconds in found.items()},
    }


def _address(server: Measured) -> tuple[str, ...]:
    return f"--url=https://127.0.0.1:{server.port}", f"--ca-file={server.ca}"


def _wait_known(server: Measured) -> None:
    """The scheduler sees the waiting pod by its watch."""
    for _ in range(200):
        if _run((*COMMANDS["explain"], *_address(server))).returncode == 0:
            return
        time.sleep(0.1)
    raise BenchmarkError("the scheduler does not know the waiting pod")


def _seconds(words: tuple[str, ...]) -> float:
    began = time.perf_counter()
    done = _run(words)
    took = time.perf_counter() - began
    if done.returncode or not done.stdout:
        raise BenchmarkError(f"vcuda {' '.join(words[:2])} ended with {done.returncode}: {done.stderr[:300]}")
    return took


def _run(words: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PROGRAM, *words], capture_output=True, text=True, check=False)


if __name__ == "__main__":
    ends_in_one_sentence(main)
