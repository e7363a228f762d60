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


class Admin:
    """An API server with two services and no pod, that refuses some calls."""

    def __init__(self, *refused: str) -> None:
        self.refused = refused
        self.deleted: list[str] = []
        self.merged: list[str] = []

    def _answer(self, call: str) -> None:
        if call in self.refused:
            raise ApiError(409, call)

    def get(self, path: str) -> dict[str, Any]:
        self._answer(f"get {path.partition('?')[0]}")
        names = ("a", "b") if path.startswith(SERVICES) else ()
        return {"metadata": {}, "items": [{"metadata": {"name": name}} for name in names]}

    def delete(self, path: str) -> None:
        self._answer(f"delete {path}")
        self.deleted.append(path)

    def merge(self, path: str, _: object) -> None:
        self._answer(f"merge {path}")
        self.merged.append(path)


class Kubelet:
    """It says whether it runs."""

    node = "n1"
    runs = True

    def stop(self) -> None:
        self.runs = False

    def start(self) -> None:
        self.runs = True


@pytest.mark.parametrize(
    ("refused", "services"),
    [
        ((), ["a", "b"]),
        ((f"get {SERVICES}",), []),
        ((f"delete {SERVICES}/a",), ["b"]),
        (("get /api/v1/namespaces/kube-system/pods",), ["a", "b"]),
        ((f"merge {NODE}",), ["a", "b"]),
    ],
    ids=["nothing", "the services", "a service", "the pods", "the node"],
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
    reset(cast("Cluster", SimpleNamespace(admin=admin, kubelet=kubelet, layout=SimpleNamespace(kubelet=tmp_path))))
    assert [path.removeprefix(f"{SERVICES}/") for path in admin.deleted if path.startswith(SERVICES)] == services
    ended = [path for path in admin.deleted if path.endswith("/pods?gracePeriodSeconds=0")]
    assert len(ended) == 2
    assert admin.merged == ([] if f"merge {NODE}" in refused else [NODE])
    assert not [path for path in remembered if path.exists()]
    assert kubelet.runs
