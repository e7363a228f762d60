"""A real node that serves claims by two drivers: the agent with `--dra`, and the bare one.

In: a running cluster. Out: both drivers registered and their slices published, until the context is left. Classes and
policies of the agent, and its permissions, are those of the chart. The bare driver's devices and class are as the
agent's, without policies.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

import urllib3
import yaml

from benchmarks.agent import REPOSITORY
from benchmarks.bare_dra import REGISTERED
from benchmarks.claims.node import BARE_DRIVER
from sandbox.cluster.agent import agent_process
from sandbox.cluster.cgroups import ClusterCgroup
from sandbox.cluster.claims import applied, remove_slices, slices
from sandbox.cluster.client import ApiError, JsonObject
from sandbox.cluster.cluster import Cluster
from sandbox.cluster.identities import RBAC, Identity, Rule
from sandbox.cluster.processes import Process
from sandbox.cluster.waiting import wait_until
from sandbox.emulated_gpus import EmulatedGpus
from sandbox.gpunode import EIGHT_GPUS

CHART = REPOSITORY / "daemonset" / "chart"
BARE_CLASS = "bare.example.org"
RBAC_GROUP = "rbac.authorization.k8s.io"
_RESOURCE = "resource.k8s.io/v1"


@contextmanager
def serving_claims(cluster: Cluster) -> Iterator[None]:
    with _kubelet_reads_claims(cluster), _serving_agent(cluster), _serving_bare(cluster):
        yield


@contextmanager
def _kubelet_reads_claims(cluster: Cluster) -> Iterator[None]:
    """Whatever the node authorizer knows so far: in a burst it is behind, and a pod that it refuses loses a minute.

    That happens with every driver, now and then, and would decide the figures.
    """
    admin, name = cluster.admin, "measured-kubelets"
    rules = [Rule("resource.k8s.io", ["resourceclaims"], ["get"]).as_json()]
    admin.post(f"{RBAC}/clusterroles", {"metadata": {"name": name}, "rules": rules})
    try:
        group = {"apiGroup": RBAC_GROUP, "kind": "Group", "name": "system:nodes"}
        role = {"apiGroup": RBAC_GROUP, "kind": "ClusterRole", "name": name}
        admin.post(f"{RBAC}/clusterrolebindings", {"metadata": {"name": name}, "roleRef": role, "subjects": [group]})
        yield
    finally:
        for kind in ("clusterrolebindings", "clusterroles"):
            with suppress(ApiError):
                admin.delete(f"{RBAC}/{kind}/{name}")


@contextmanager
def _serving_agent(cluster: Cluster) -> Iterator[None]:
    admin, folder = cluster.admin, cluster.layout.root / "measured"
    with ExitStack() as undo:
        (folder / "gpus").mkdir(parents=True)
        undo.callback(shutil.rmtree, folder)
        undo.enter_context(applied(admin, rendered("claims")))
        role = next(each for each in rendered("clusterrole") if each["kind"] == "ClusterRole")
        identity = Identity.create(admin, "measured-agent", role["rules"])
        undo.callback(identity.remove)
        gpus = EmulatedGpus(EIGHT_GPUS, folder / "gpus" / "state")
        flags = ("--dra", f"--cdi-dir={cluster.layout.cdi}", "--log-level=warning")
        process, url = agent_process(cluster, folder, gpus, identity, *flags)
        undo.callback(remove_slices, admin)
        undo.callback(process.stop)
        process.start()
        wait_until(partial(_is_ready, process, url), "the agent is ready", evidence=process.log_tail)
        wait_until(lambda: slices(admin), "its slice is published", evidence=process.log_tail)
        yield


def _is_ready(process: Process, url: str) -> bool:
    process.require_running()
    try:
        return urllib3.request("GET", f"{url}/readyz", timeout=30, retries=False).status == 200
    except urllib3.exceptions.HTTPError:
        return False


@contextmanager
def _serving_bare(cluster: Cluster) -> Iterator[None]:
    layout, admin = cluster.layout, cluster.admin
    with ExitStack() as undo:
        rule = Rule("resource.k8s.io", ["resourceclaims"], ["get"]).as_json()
        identity = Identity.create(admin, "measured-bare", [rule])
        undo.callback(identity.remove)
        kubeconfig = identity.kubeconfig(
            layout.root / "bare.kubeconfig", server=cluster.control_plane.server, ca=cluster.ca.certificate
        )
        words = [BARE_DRIVER, str(layout.kubelet), str(layout.cdi), str(kubeconfig)]
        command = ClusterCgroup(layout.name).joining([sys.executable, "-m", "benchmarks.bare_dra", *words])
        process = Process("the bare driver", command, layout.logs / "bare.log", {"PYTHONPATH": str(REPOSITORY)})
        undo.callback(process.stop)
        process.start()
        registered = layout.kubelet / "plugins" / BARE_DRIVER / REGISTERED
        wait_until(registered.exists, "kubelet knows the bare driver", evidence=process.log_tail)
        undo.enter_context(applied(admin, [bare_class(), bare_slice(cluster.kubelet.node)]))
        yield


def bare_class() -> JsonObject:
    selector = {"cel": {"expression": f"device.driver == '{BARE_DRIVER}'"}}
    return {
        "apiVersion": _RESOURCE,
        "kind": "DeviceClass",
        "metadata": {"name": BARE_CLASS},
        "spec": {"selectors": [selector]},
    }


def bare_slice(node: str) -> JsonObject:
    """Eight GPUs of 100 cores and 80 GiB."""
    capacity = {
        name: {
            "value": total,
            "requestPolicy": {"default": total, "validRange": {"min": step, "max": total, "step": step}},
        }
        for name, total, step in (("cores", "100", "1"), ("memory", "80Gi", "256Mi"))
    }
    devices = [{"name": f"gpu-{at}", "allowMultipleAllocations": True, "capacity": capacity} for at in range(8)]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": _RESOURCE,
        "kind": "ResourceSlice",
        "metadata": {"name": f"bare-{node}"},
        "spec": {"driver": BARE_DRIVER, "nodeName": node, "pool": pool, "devices": devices},
    }


def _capacity(total: str, *, step: str) -> JsonObject:
    return {
        "value": total,
        "requestPolicy": {"default": total, "validRange": {"min": step, "max": total, "step": step}},
    }


def rendered(template: str) -> list[JsonObject]:
    """The objects of one template of the agent, as the chart renders them with claims."""
    helm = subprocess.run([REPOSITORY / "scripts/helm/build"], check=True, stdout=subprocess.PIPE, text=True)
    command = [helm.stdout.strip(), "template", "vcuda", str(CHART), "--namespace=kube-system", "--kube-version=1.36.2"]
    command += ["--set=agent.dra.enabled=true", f"--show-only=templates/agent/{template}.yaml"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return [each for each in yaml.safe_load_all(done.stdout) if each]
