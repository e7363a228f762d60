"""`vcuda scheduler`, or an empty extender, as a process on one core, in front of a stub API server or a real one.

In: a kubeconfig, the core. Out: its URL, its certificate, its memory. Invariant: it runs only on this core from its
first instruction on, and the measuring processes run on others.
"""

import contextlib
import os
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from deviceplugin.kube.credentials import client_tls
from sandbox.cluster.certificates import ClusterCa
from sandbox.cluster.processes import free_ports

PROGRAM = Path(sys.executable).with_name("vcuda")
REPOSITORY = Path(__file__).resolve().parents[2]
READY_SECONDS = 120.0


class MeasuredError(Exception):
    """The measured process failed."""


@dataclass(frozen=True)
class MeasuredExtender:
    """A process that answers on loopback, without TLS."""

    process: subprocess.Popen[bytes]
    loopback_port: int

    @property
    def url(self) -> str:
        """The URL that the chart's kube-scheduler uses."""
        return f"http://127.0.0.1:{self.loopback_port}"

    def cpu_seconds(self) -> float:
        return cpu_seconds(self.process.pid)


@dataclass(frozen=True)
class Measured(MeasuredExtender):
    """`vcuda scheduler`, with its port with TLS."""

    port: int
    ca: Path
    log: Path
    ready_s: float

    def trust(self) -> ssl.SSLContext:
        return client_tls(ca_file=str(self.ca))

    def thread_ms(self) -> float:
        """Processor time of its first thread, which is the one of its loop."""
        pid = self.process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e6

    def rss_mib(self, field: str = "VmRSS") -> float:
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) / 1024
        raise MeasuredError(f"vcuda scheduler has ended: {_tail(self.log)}")


@contextlib.contextmanager
def measured_scheduler(folder: Path, kubeconfig: Path, *flags: str, core: int | None) -> Iterator[Measured]:
    """`core` None: any core."""
    folder.mkdir(parents=True, exist_ok=True)
    ca = ClusterCa(folder / "pki")
    pair = ca.issue("extender", common_name="vcuda-scheduler", names=["127.0.0.1", "localhost"])
    port, loopback_port = free_ports(2)
    command = [
        *_on(core),
        str(PROGRAM),
        "scheduler",
        f"--kubeconfig={kubeconfig}",
        "--listen-addr=127.0.0.1",
        f"--listen-port={port}",
        f"--loopback-port={loopback_port}",
        f"--tls-cert-file={pair.certificate}",
        f"--tls-key-file={pair.key}",
        "--webhook-configuration=",
        "--leader-election=none",
        "--drain=0s",
        "--log-level=warning",
        *flags,
    ]
    log = folder / "scheduler.log"
    with log.open("wb") as out:
        began = time.monotonic()
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        trust = client_tls(ca_file=str(ca.certificate))
        _wait_ready(process, f"https://127.0.0.1:{port}/readyz", trust, log)
        yield Measured(process, loopback_port, port, ca.certificate, log, time.monotonic() - began)
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def empty_extender(kubeconfig: Path | None = None, *, core: int | None) -> Iterator[MeasuredExtender]:
    """The least that an extender can be (`benchmarks.cluster.empty`); it binds if it has a kubeconfig."""
    (port,) = free_ports(1)
    given = [] if kubeconfig is None else [str(kubeconfig)]
    command = [*_on(core), sys.executable, "-m", "benchmarks.cluster.empty", str(port), *given]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE) as process:
        try:
            if process.stdout is None or process.stdout.readline() != b"ready\n":
                raise MeasuredError("the empty extender did not start")
            yield MeasuredExtender(process, port)
        finally:
            process.kill()


def _on(core: int | None) -> list[str]:
    return [] if core is None else ["taskset", "--cpu-list", str(core)]


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def pin_others(core: int) -> None:
    """This process and its later children do not run on the measured core."""
    others = set(range(os.cpu_count() or 1)) - {core}
    if others:
        os.sched_setaffinity(0, others)


def _wait_ready(process: subprocess.Popen[bytes], url: str, trust: ssl.SSLContext, log: Path) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise MeasuredError(f"vcuda scheduler ended with {process.returncode}: {_tail(log)}")
        with contextlib.suppress(OSError), urllib.request.urlopen(url, context=trust, timeout=5) as answer:
            if answer.status == 200:
                return
        time.sleep(0.05)
    raise MeasuredError(f"vcuda scheduler is not ready after {READY_SECONDS:.0f} s: {_tail(log)}")


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-15:])
