"""Where ResourceClaims and their classes are in the API server, and how the chart's are put there.

In: the admin's client, objects as the chart renders them. Out: classes and policies until the context is left. Not
here: rendering the chart, and what the objects mean.
"""

import contextlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

from sandbox.cluster import pods
from sandbox.cluster.client import ApiError, Client, JsonObject
from sandbox.cluster.policies import ADMISSION_PATHS, wait_until_in_force
from sandbox.cluster.waiting import wait_until

DRA = "/apis/resource.k8s.io/v1"
TEMPLATES = f"{DRA}/namespaces/{pods.NAMESPACE}/resourceclaimtemplates"
CLAIMS = f"{DRA}/namespaces/{pods.NAMESPACE}/resourceclaims"
SLICES = f"{DRA}/resourceslices"
CLASSES = f"{DRA}/deviceclasses"
DRIVER, SHARES, WHOLE_GPUS = "gpu.vcuda.tencent.com", "vcuda.tencent.com", "vcuda-gpu.tencent.com"
_PLACES = {
    "DeviceClass": CLASSES,
    "ResourceSlice": SLICES,
    **ADMISSION_PATHS,
}


@contextmanager
def applied(admin: Client, objects: Iterable[JsonObject]) -> Iterator[None]:
    """Classes, policies and slices; the policies are in force."""
    with ExitStack() as undo:
        for each in objects:
            path = _PLACES[each["kind"]]
            admin.post(path, each)
            undo.callback(admin.delete, f"{path}/{each['metadata']['name']}")
        wait_until_in_force(admin)
        yield


def slices(admin: Client, driver: str = DRIVER) -> list[JsonObject]:
    found: list[JsonObject] = admin.get(f"{SLICES}?fieldSelector=spec.driver={driver}")["items"]
    return found


def remove_slices(admin: Client, driver: str = DRIVER) -> None:
    """Of a driver that has ended; kubelet removes them too, half a minute later."""
    for each in slices(admin, driver):
        with contextlib.suppress(ApiError):
            admin.delete(f"{SLICES}/{each['metadata']['name']}")


def delete_all(admin: Client) -> None:
    """Claims and their templates; their pods have to be gone."""
    for path in (TEMPLATES, CLAIMS):
        for each in admin.get(path)["items"]:
            with contextlib.suppress(ApiError):  # the controller that made it may be faster
                admin.delete(f"{path}/{each['metadata']['name']}")
    wait_until(lambda: not admin.get(CLAIMS)["items"], "all claims are gone")
