"""`sandbox.cluster.reset` where the API server refuses: what cannot be removed does not keep the rest from it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sandbox.cluster.client import ApiError
from sandbox.cluster.cluster import Cluster
from sandbox.cluster.reset import reset

pytestmark = pytest.mark.thorough

SERVICES = "/api/v1/namespaces/kube-system/services"
NODE = "/api/v1/nodes/n1"
OFFERING = {"capacity": {"cpu": "2", "nvidia.com/gpu": "80"}, "allocatable": {"cpu": "2", "nvidia.com/gpu": "80"}}


class Admin:
    """An API server with two services, a node that offers a plugin's resource and no pod, that refuses some calls."""

    def __init__(self, *refused: str, status: object = OFFERING) -> None:
        self.refused = refused
        self.status = status
        self.deleted: list[str] = []
        self.merged: dict[str, object] = {}

    def _answer(self, call: str) -> None:
        if call in self.refused:
            raise ApiError(409, call)

    def get(self, path: str) -> dict[str, Any]:
        self._answer(f"get {path.partition('?')[0]}")
        names = ("a", "b") if path.startswith(SERVICES) else ()
        return {"metadata": {}, "status": self.status, "items": [{"metadata": {"name": name}} for name in names]}

    def delete(self, path: str) -> None:
        self._answer(f"delete {path}")
        self.deleted.append(path)

    def merge(self, path: str, change: object) -> None:
        self._answer(f"merge {path}")
        self.merged[path] = change


class Kubelet:
    """It says whether it runs."""

    node = "n1"
    runs = True

    def stop(self) -> None:
        self.runs = False

    def start(self) -> None:
        self.runs = True


def made(admin: Admin, kubelet: Kubelet, folder: Path) -> Cluster:
    layout = SimpleNamespace(kubelet=folder)
    return cast("Cluster", SimpleNamespace(admin=admin, kubelet=kubelet, layout=layout))


@pytest.mark.parametrize("status", [OFFERING, {"capacity": None}, {}, None], ids=str)
def test_resources_of_plugins_are_taken_off_the_node(tmp_path: Path, status: object) -> None:
    """A node whose kubelet has not reported yet has none."""
    admin = Admin(status=status)
    reset(made(admin, Kubelet(), tmp_path))
    gone = {"nvidia.com/gpu": None} if status is OFFERING else {}
    assert admin.merged[f"{NODE}/status"] == {"status": {"capacity": gone, "allocatable": gone}}


@pytest.mark.parametrize(
    ("refused", "services"),
    [
        ((), ["a", "b"]),
        ((f"get {SERVICES}",), []),
        ((f"delete {SERVICES}/a",), ["b"]),
        (("get /api/v1/namespaces/kube-system/pods",), ["a", "b"]),
        ((f"merge {NODE}",), ["a", "b"]),
        ((f"merge {NODE}/status",), ["a", "b"]),
    ],
    ids=["nothing", "the services", "a service", "the pods", "the node", "its status"],
)
def test_what_cannot_be_removed_does_not_keep_the_rest(
    tmp_path: Path, refused: tuple[str, ...], services: list[str]
) -> None:
    names = ("device-plugins/kubelet_internal_checkpoint", "dra_manager_state", "dra_health_state")
    remembered = [tmp_path / name for name in names]
    for path in remembered:
        path.parent.mkdir(exist_ok=True)
        path.write_text("left")
    admin, kubelet = Admin(*refused), Kubelet()
    reset(made(admin, kubelet, tmp_path))
    assert [path.removeprefix(f"{SERVICES}/") for path in admin.deleted if path.startswith(SERVICES)] == services
    ended = [path for path in admin.deleted if path.endswith("/pods?gracePeriodSeconds=0")]
    assert len(ended) == 2
    assert [f"merge {path}" in refused for path in (NODE, f"{NODE}/status")] == [
        path not in admin.merged for path in (NODE, f"{NODE}/status")
    ]
    assert not [path for path in remembered if path.exists()]
    assert kubelet.runs
