"""Hollow nodes: nodes that exist only as objects, with a stand-in kubelet for all of them in this process.

In: a client and inventories. Out: Ready nodes that offer both resources and run whatever is bound to them: a pod gets
phase Running, a deleted one ends. So kube-scheduler, API server and extender are real and no container costs anything.
Not here: agents and containers (a pod's GPUs are what its annotations say). Invariant: leaving the context removes the
nodes, and no thread is left.
"""

import contextlib
import datetime as dt
import json
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import urllib3

from deviceplugin.model.annotation_names import AnnotationNames
from deviceplugin.model.gpu import Inventory
from deviceplugin.model.node import format_inventory
from deviceplugin.model.units import CORES_PER_GPU, ResourceNames
from sandbox.cluster.client import ApiError, Client, JsonObject
from sandbox.cluster.waiting import wait_until

HEARTBEAT_SECONDS = 8.0
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
NOTHING: Mapping[str, str] = {}


@dataclass(slots=True)
class HollowNodes:
    """The nodes and the two threads that keep them alive."""

    admin: Client
    inventories: Mapping[str, Inventory]
    runs_pods: bool = True
    over: threading.Event = field(default_factory=threading.Event)
    failures: list[str] = field(default_factory=list)
    watch: urllib3.BaseHTTPResponse | None = None

    def register(self) -> None:
        for name, inventory in self.inventories.items():
            self.admin.post("/api/v1/nodes", _node(name, inventory))
            self.admin.merge(f"/api/v1/nodes/{name}/status", {"status": _status(inventory)})
            self.admin.post(LEASES, _lease(name))
        wait_until(self._all_schedulable, f"{len(self.inventories)} hollow nodes are Ready")

    def remove(self) -> None:
        for name in self.inventories:
            for path in (f"/api/v1/nodes/{name}", f"{LEASES}/{name}"):
                with contextlib.suppress(ApiError):
                    self.admin.delete(path)

    def beat(self) -> None:
        while not self.over.wait(HEARTBEAT_SECONDS):
            for name in self.inventories:
                with contextlib.suppress(ApiError, urllib3.exceptions.HTTPError):
                    self.admin.merge(f"{LEASES}/{name}", {"spec": {"renewTime": _now(micro=True)}})

    def follow(self) -> None:
        """Watches pods until it is over; begins again from a list where a watch ends."""
        with ThreadPoolExecutor(4, thread_name_prefix="hollow") as hands:
            while not self.over.is_set():
                try:
                    found = self.admin.get("/api/v1/pods")
                    for item in found["items"]:
                        hands.submit(self._look, item)
                    self.watch = _watch(self.admin, found["metadata"]["resourceVersion"])
                    for item in _changes(self.watch):
                        hands.submit(self._look, item)
                except (ApiError, urllib3.exceptions.HTTPError):
                    self.over.wait(0.2)  # the API server is restarted by some tests

    def end(self) -> None:
        """Ends both threads soon; a watch that began at this very moment ends by itself."""
        self.over.set()
        if self.watch is not None:
            with contextlib.suppress(OSError, ValueError, RuntimeError):  # it has ended meanwhile
                self.watch.shutdown()

    def _look(self, item: JsonObject) -> None:
        """What a kubelet would do about the pod as it is now."""
        metadata = item["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        if item["spec"].get("nodeName") not in self.inventories:
            return
        try:
            if "deletionTimestamp" in metadata:
                self.admin.text("DELETE", path, body=_end_of(metadata["uid"]))
            elif self.runs_pods and item.get("status", {}).get("phase") == "Pending":
                self.admin.merge(f"{path}/status", {"metadata": {"uid": metadata["uid"]}, "status": _running(item)})
        except ApiError as error:
            if error.status not in (404, 409, 422):  # it has gone meanwhile, or another has its name
                self.failures.append(f"{path}: {error}")

    def _all_schedulable(self) -> bool:
        nodes = {item["metadata"]["name"]: item for item in self.admin.get("/api/v1/nodes")["items"]}
        return all(not nodes[name]["spec"].get("taints") for name in self.inventories)


@contextmanager
def hollow_nodes(
    admin: Client, inventories: Mapping[str, Inventory], *, runs_pods: bool = True
) -> Iterator[HollowNodes]:
    """Without `runs_pods` a bound pod stays Pending until it is deleted: no kubelet's work beside what is measured."""
    nodes = HollowNodes(admin, inventories, runs_pods)
    threads = [threading.Thread(target=work, daemon=True) for work in (nodes.beat, nodes.follow)]
    try:
        for thread in threads:
            thread.start()
        nodes.register()
        yield nodes
        assert not nodes.failures, nodes.failures[:3]
    finally:
        nodes.end()
        nodes.remove()
        for thread in threads:
            thread.join(15)


def _watch(client: Client, version: str) -> urllib3.BaseHTTPResponse:
    """Pods as they change, for at most some seconds."""
    query = f"watch=true&resourceVersion={version}&timeoutSeconds=5"
    return client.pool.request(
        "GET",
        f"{client.server}/api/v1/pods?{query}",
        headers=client.headers,
        preload_content=False,
        timeout=urllib3.Timeout(connect=5, read=30),
        retries=False,
    )


def _changes(reply: urllib3.BaseHTTPResponse) -> Iterator[JsonObject]:
    try:
        rest = b""
        for chunk in reply.stream(65536):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    return
                if event["type"] != "DELETED":
                    yield event["object"]
    finally:
        reply.close()


def _node(name: str, inventory: Inventory) -> JsonObject:
    annotations = {AnnotationNames().inventory: format_inventory(inventory, share_mode=True)}
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "vcuda-e2e/hollow": "true"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, "annotations": annotations},
        "status": _status(inventory),
    }


def _status(inventory: Inventory) -> JsonObject:
    names = ResourceNames()
    offered = {
        "cpu": "128",
        "memory": "1024Gi",
        "pods": "500",
        names.core: str(CORES_PER_GPU * len(inventory.gpus)),
        names.memory: str(sum(gpu.blocks for gpu in inventory.gpus)),
    }
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "hollow"}
    times = {"lastHeartbeatTime": _now(), "lastTransitionTime": _now()}
    return {"capacity": offered, "allocatable": offered, "conditions": [{**ready, **times}]}


def _lease(name: str) -> JsonObject:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": _now(micro=True)},
    }


def _end_of(uid: str) -> JsonObject:
    """Of this very pod: by the time that its event is looked at, another may have its name."""
    return {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0, "preconditions": {"uid": uid}}


def _running(item: JsonObject) -> JsonObject:
    started = [
        {
            "name": each["name"],
            "image": each["image"],
            "imageID": each["image"],
            "ready": True,
            "started": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": _now()}},
        }
        for each in item["spec"]["containers"]
    ]
    return {"phase": "Running", "startTime": _now(), "containerStatuses": started}


def _now(*, micro: bool = False) -> str:
    form = "%Y-%m-%dT%H:%M:%S.%fZ" if micro else "%Y-%m-%dT%H:%M:%SZ"
    return dt.datetime.now(dt.UTC).strftime(form)
