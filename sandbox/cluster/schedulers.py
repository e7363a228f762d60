"""kube-scheduler with our extender, as the chart configures it, beside the cluster's own.

In: the extender's address and CA, a scheduler name. Out: a kube-scheduler that schedules the pods of that name.
The cluster's own kube-scheduler goes on as a second scheduler that knows nothing of us. Not here: the extender.
Invariant: client limits are far above what a test can do, unless they are asked for, so that they shape no measurement.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deviceplugin.model.units import ResourceNames
from sandbox.cluster.client import JsonObject
from sandbox.cluster.control_plane import Component, ControlPlane, make_scheduler
from sandbox.cluster.kubeconfig import write_kubeconfig

GANGS = ("GenericWorkload", "GangScheduling")


@dataclass(frozen=True, slots=True)
class Limits:
    """Requests of a kube-scheduler to the API server, a second and at once."""

    qps: int
    burst: int


UNLIMITED = Limits(2000, 4000)


@dataclass(frozen=True, slots=True)
class ExtenderAddress:
    """Where the extender serves, and who vouches for it; nobody where the URL is without TLS."""

    url: str
    ca: Path | None = None
    server_name: str = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Plugins:
    """Another kube-scheduler's program, and what of it a profile switches on, as the chart's values have it."""

    program: Path
    enabled: JsonObject


def scheduler_with(
    plane: ControlPlane,
    name: str,
    extender: ExtenderAddress | None,
    *,
    gates: Sequence[str] = GANGS,
    plugins: Plugins | None = None,
    limits: Limits = UNLIMITED,
) -> Component:
    """Schedules pods with `schedulerName: name`; without an extender it is a plain one."""
    files = plane.files
    identity = files.ca.issue(name, common_name="system:kube-scheduler")
    folder = files.layout.root
    kubeconfig = write_kubeconfig(
        folder / f"{name}.kubeconfig", server=plane.server, ca=files.ca.certificate, identity=identity
    )
    configuration = folder / f"{name}.json"
    configuration.write_text(json.dumps(_document(name, kubeconfig, extender, plugins, limits), indent=2))
    return make_scheduler(
        files,
        name,
        configuration,
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        *([f"--feature-gates={','.join(f'{gate}=true' for gate in gates)}"] if gates else []),
        program=plugins.program if plugins else None,
    )


def _document(
    name: str, kubeconfig: Path, extender: ExtenderAddress | None, plugins: Plugins | None, limits: Limits
) -> JsonObject:
    profile: JsonObject = {"schedulerName": name, **({"plugins": plugins.enabled} if plugins else {})}
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": limits.qps, "burst": limits.burst},
        "percentageOfNodesToScore": 100,  # the chart's default
        "profiles": [profile],
        "extenders": [_extender(extender)] if extender else [],
    }


def _extender(address: ExtenderAddress) -> JsonObject:
    names = ResourceNames()
    secured = {"tlsConfig": {"serverName": address.server_name, "caFile": str(address.ca)}}
    return {
        **(secured if address.ca else {}),
        "urlPrefix": address.url,
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "weight": 1,
        "preemptVerb": "preempt",
        "bindVerb": "bind",
        "enableHTTPS": address.ca is not None,
        "httpTimeout": "10s",
        "nodeCacheCapable": True,
        "ignorable": False,
        "managedResources": [{"name": each, "ignoredByScheduler": False} for each in (names.core, names.memory)],
    }
