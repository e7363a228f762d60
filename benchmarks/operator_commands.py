"""How long an operator waits for `vcuda nodes`, `top`, `pods`, `node` and `explain` in a large cluster.

Each command is a process of its own, as an operator starts it: it connects by TLS, reads, and prints. Output (keys of
`--output json`): `<command>_s`, the median of the rounds; `<command>_ratio`, the same over the median of
`vcuda version --client` (`least_s`), which starts the same program and asks nobody. Commands and `least` run by turns.
`screen_...` is the time until `vcuda top` has drawn its first page on a terminal, `screen_..._used` until that page
says what is used too; the others print everything. Every node has an agent, and before each command that asks agents
their last answers are too old to be shown again. `use_order_cpu_s`: CPU that one order by use costs the scheduler.
`explain` is of a waiting pod about which kube-scheduler has not asked, so that the scheduler evaluates every node.

    python -m benchmarks.operator_commands [--nodes N] [--rounds N] [--output json] [--short]
"""

import fcntl
import json
import os
import pty
import struct
import subprocess
import termios
import time
import urllib.request
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from statistics import median

from benchmarks.cluster import fleet
from benchmarks.cluster.agents import agent_servers
from benchmarks.cluster.measured import PROGRAM, Measured, measured_scheduler
from benchmarks.cluster.stub import PODS_A_NODE, stub_server
from benchmarks.command import BenchmarkError, ends_in_one_sentence, options, scratch_folder, show
from deviceplugin.cluster.view.live import ORDER_S, ROW_S
from sandbox.apiserver.kubeconfig import write_kubeconfig
from sandbox.apiserver.reviews import VIEWER, token_of

SHORT = (20, 1)
LEAST = ("version", "--client")
COMMANDS = {
    "nodes": ("nodes",),
    "node": ("node", fleet.node_name(0)),
    "pods": ("pods", "-A"),
    "pods_json": ("pods", "-A", "-o", "json"),
    "explain": ("explain", f"default/{fleet.pending_name(0)}"),
    "top_nodes": ("top", "nodes", "--once"),
    "top_gpus": ("top", "gpus", "--once"),
    "top_pods": ("top", "pods", "-A", "--once"),
}
SCREENS = {
    "screen_nodes": ("top", "nodes"),
    "screen_gpus": ("top", "gpus"),
    "screen_pods": ("top", "pods", "-A"),
    "screen_gpus_by_use": ("top", "gpus", "--sort-by", "used"),
}
_DRAWN = b"q quit"
_ASKING = b"asking the agents"
_PATIENCE_S = 120.0


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--nodes", type=int, default=5_000, help="nodes of eight GPUs each (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="of every command (default: %(default)s)")
    given = parser.parse_args()
    if given.short:
        given.nodes, given.rounds = SHORT
    with scratch_folder() as folder:
        show(measure(folder, given.nodes, given.rounds, is_cold=not given.short), given.output)


def measure(folder: Path, nodes: int, rounds: int, *, is_cold: bool) -> dict[str, float]:
    pods = nodes * PODS_A_NODE
    with agent_servers(nodes, pods) as port, stub_server(nodes, pods, port) as (stub, _):
        kubeconfig = write_kubeconfig(folder / "kubeconfig", stub)
        with measured_scheduler(folder, kubeconfig, core=None) as server:
            urllib.request.urlopen(urllib.request.Request(f"{stub}/bench/pods?from=0&to=1", method="POST")).close()
            _wait_known(server)
            _check_live(server, nodes)
            times: dict[str, list[float]] = defaultdict(list)
            costs = []
            for _ in range(rounds):
                times["least"].append(_seconds(LEAST))
                for name, words in COMMANDS.items():
                    time.sleep(ROW_S if is_cold and words[0] == "top" else 0)
                    times[name].append(_seconds((*words, *_address(server))))
                for name, words in SCREENS.items():
                    time.sleep((ORDER_S if "used" in words else ROW_S) if is_cold else 0)
                    before = server.cpu_seconds()
                    drawn, used = _screen_seconds((*words, *_address(server)))
                    times[name].append(drawn)
                    times[f"{name}_used"].append(used)
                    if "used" in words:
                        costs.append(server.cpu_seconds() - before)
    least = median(times.pop("least"))
    found = {name: median(seconds) for name, seconds in times.items()}
    return {
        "nodes": nodes,
        "least_s": least,
        **{f"{name}_s": seconds for name, seconds in found.items()},
        **{f"{name}_ratio": seconds / least for name, seconds in found.items()},
        "use_order_cpu_s": median(costs),
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


def _check_live(server: Measured, nodes: int) -> None:
    """Figures of `top` mean something only if every agent has answered."""
    items = json.loads(_run(("top", "nodes", "-o", "json", *_address(server))).stdout)["items"]
    known = sum(row["live"] is not None for row in items)
    if known != nodes:
        raise BenchmarkError(f"what is used is known of {known} of {nodes} nodes: {items[0]['live_error']}")


def _seconds(words: tuple[str, ...]) -> float:
    began = time.perf_counter()
    done = _run(words)
    took = time.perf_counter() - began
    if done.returncode or not done.stdout:
        raise BenchmarkError(f"vcuda {' '.join(words[:2])} ended with {done.returncode}: {done.stderr[:300]}")
    return took


def _screen_seconds(words: tuple[str, ...]) -> tuple[float, float]:
    """On a terminal of 120 columns, until the last line of the first page is there, and of the first with use."""
    mine, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 120, 0, 0))
    began, shown, drawn = time.perf_counter(), b"", 0.0
    env = {**_environment(), "TERM": "xterm"}
    process = subprocess.Popen([PROGRAM, *words], stdin=its, stdout=its, stderr=its, env=env)
    os.close(its)
    try:
        with suppress(OSError):  # the program has ended
            while not _has_use(shown) and time.perf_counter() - began < _PATIENCE_S:
                shown += os.read(mine, 1 << 16)
                drawn = drawn or (_DRAWN in shown) * (time.perf_counter() - began)
        took = time.perf_counter() - began
    finally:
        process.kill()
        process.wait()
        os.close(mine)
    if not _has_use(shown):
        raise BenchmarkError(f"vcuda {' '.join(words[:2])} drew no page: {shown[-300:].decode(errors='replace')}")
    return drawn, took


def _has_use(shown: bytes) -> bool:
    """Whether a whole page was drawn that does not wait for the agents."""
    return any(_ASKING not in page for page in shown.split(_DRAWN)[:-1])


def _run(words: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PROGRAM, *words], env=_environment(), capture_output=True, text=True, check=False)


def _environment() -> dict[str, str]:
    """Of a caller who may read about all pods."""
    return {**os.environ, "VCUDA_TOKEN": token_of(VIEWER, "vcuda")}


if __name__ == "__main__":
    ends_in_one_sentence(main)
