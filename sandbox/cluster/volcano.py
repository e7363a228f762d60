"""Volcano's scheduler and controllers beside the cluster's own, as its installer starts them.

In: the programs and the definitions of its kinds, the lines of volcano-scheduler.conf. Out: both programs running, and
the kinds served. Not here: Volcano's webhooks; they only fill in what its jobs leave out. Invariant: leaving the
context ends both and removes every object of its kinds.
"""

import contextlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from sandbox.cluster.client import ApiError, Client
from sandbox.cluster.control_plane import ControlPlane
from sandbox.cluster.processes import Process, free_ports
from sandbox.cluster.waiting import wait_until

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
QUEUES = "/apis/scheduling.volcano.sh/v1beta1/queues"
JOBS = "/apis/batch.volcano.sh/v1alpha1/namespaces/default/jobs"
GROUPS = "/apis/scheduling.volcano.sh/v1beta1/namespaces/default/podgroups"
DEFAULT_QUEUE = "default"
_CONTROLLERS = "+gc-controller,+job-controller,+pg-controller,+queue-controller"
"""Those of jobs, gangs and queues."""


@dataclass(frozen=True, slots=True)
class Volcano:
    """`scheduler` may be killed and started again."""

    scheduler: Process
    controllers: Process
    admin: Client

    def evidence(self) -> str:
        return f"{self.scheduler.log_tail()}\n{self.controllers.log_tail()}"


@contextmanager
def volcano_running(plane: ControlPlane, programs: Path, folder: Path, conf: str, *flags: str) -> Iterator[Volcano]:
    """`conf`: the text of volcano-scheduler.conf. `flags` are further ones of vc-scheduler."""
    with ExitStack() as undo:
        for file in sorted(programs.glob("*.yaml")):
            _define(plane.admin, file, undo)
        wait_until(lambda: _is_served(plane.admin), "Volcano's kinds are served")
        (folder / "volcano-scheduler.conf").write_text(conf)
        found = Volcano(
            _program(plane, programs / "scheduler", f"--scheduler-conf={folder / 'volcano-scheduler.conf'}", *flags),
            _program(plane, programs / "controller-manager", "--leader-elect=false", f"--controllers={_CONTROLLERS}"),
            plane.admin,
        )
        for each in (found.controllers, found.scheduler):
            undo.callback(each.kill)
            each.start()
        wait_until(lambda: _has_queue(found), "Volcano has its queue", evidence=found.evidence)
        yield found


def _program(plane: ControlPlane, program: Path, *flags: str) -> Process:
    (port,) = free_ports(1)
    name = f"volcano-{program.name}"
    command = [
        str(program),
        f"--kubeconfig={plane.admin_kubeconfig}",
        f"--healthz-address=127.0.0.1:{port}",
        "--v=3",
        *flags,
    ]
    return Process(name, plane.files.cgroup.joining(command), plane.files.layout.logs / f"{name}.log")


def _define(admin: Client, file: Path, undo: ExitStack) -> None:
    definition = yaml.safe_load(file.read_text())
    admin.post(DEFINITIONS, definition)
    undo.callback(_remove, admin, f"{DEFINITIONS}/{definition['metadata']['name']}")


def _is_served(admin: Client) -> bool:
    try:
        for path in (QUEUES, JOBS, GROUPS):
            admin.get(path)
    except ApiError:
        return False
    return True


def _has_queue(found: Volcano) -> bool:
    for each in (found.scheduler, found.controllers):
        each.require_running()
    queues = found.admin.get(QUEUES)["items"]
    return any(
        each["metadata"]["name"] == DEFAULT_QUEUE and each.get("status", {}).get("state") == "Open" for each in queues
    )


def _remove(admin: Client, path: str) -> None:
    with contextlib.suppress(ApiError):
        admin.delete(path)
