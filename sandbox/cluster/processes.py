"""One long-lived program of the cluster: start, stop, kill, start again.

In: a command and where its log goes. Out: a `Process` that says whether it runs, and why not in its log's last lines.
Not here: which programs there are. Invariant: a process is ended through its own process group, never by name.
"""

import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sandbox.cluster.waiting import HarnessError

PATIENCE_S = 60.0
"""How long a process may take to end; a busy machine can be slow."""
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(slots=True)
class Process:
    """A program that may be started and ended many times; every run appends to the same log."""

    name: str
    command: Sequence[str]
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    running: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if self.is_running():
            raise HarnessError(f"{self.name} already runs.")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self.running = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env={"PATH": SEARCH_PATH, **self.environment},
                start_new_session=True,
            )

    def is_running(self) -> bool:
        return self.running is not None and self.running.poll() is None

    def require_running(self) -> None:
        if not self.is_running():
            code = self.running.returncode if self.running else "never started"
            raise HarnessError(f"{self.name} is not running (exit {code}).\n{self.log_tail()}")

    @property
    def pid(self) -> int:
        if self.running is None:
            raise HarnessError(f"{self.name} was never started.")
        return self.running.pid

    def stop(self) -> None:
        """Asks first (SIGTERM), insists if that does not help."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Without any CPU time meanwhile; much faster than a start."""
        self.require_running()
        os.killpg(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(self.pid, signal.SIGCONT)

    def log_tail(self, lines: int = 30) -> str:
        if not self.log.exists():
            return f"({self.log} does not exist)"
        text = self.log.read_text(errors="replace").splitlines()[-lines:]
        return "\n".join([f"--- the end of {self.log}:", *text])

    def _end(self, how: signal.Signals) -> None:
        if self.running is None:
            return
        if self.running.poll() is None:
            os.killpg(self.running.pid, how)
            try:
                self.running.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                os.killpg(self.running.pid, signal.SIGKILL)
                self.running.wait(PATIENCE_S)


def run(command: Sequence[str], *, doing: str, stdin: bytes | None = None, seconds: float = 120) -> str:
    """Runs a short command to its end; its words are the error where it fails."""
    done = subprocess.run(
        command,
        input=stdin,
        capture_output=True,
        timeout=seconds,
        check=False,
        env={"PATH": SEARCH_PATH},
    )
    if done.returncode:
        words = (done.stderr + done.stdout).decode(errors="replace").strip()
        raise HarnessError(f"{doing} failed ({' '.join(command)}): {words}")
    return done.stdout.decode(errors="replace")


def free_ports(count: int) -> list[int]:
    """Ports free at this moment, all different because all are held while the others are chosen."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        return [int(listener.getsockname()[1]) for listener in sockets]
