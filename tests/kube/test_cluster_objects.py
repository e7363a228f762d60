"""Secrets, leases and webhook configurations: what was read is what is changed, and others' parts stay."""

import base64
import datetime as dt
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deviceplugin.errors import KubeConflictError, KubeNotFoundError, ParseError
from deviceplugin.kube.cluster_client import ClusterClient, Secret
from deviceplugin.kube.collection import ObjectRef
from deviceplugin.kube.leader_election import LEASES, LeaseView, Term, create_lease, micro_time, update_lease
from deviceplugin.kube.transport import Timeouts, TokenBucket
from sandbox.apiserver import ApiServer, Harm, JsonObject
from tests.kube.kubeconfigs import open_transport

TIMEOUTS = Timeouts(connect=5.0, request=5.0, silence=1.0)
OLD, NEW = (f"-----BEGIN CERTIFICATE-----\n{name}\n".encode() for name in ("old", "new"))


@pytest.fixture
async def cluster(server: ApiServer, tmp_path: Path) -> AsyncIterator[ClusterClient]:
    async with ClusterClient(await open_transport(server.kubeconfig(tmp_path / "kc"), timeouts=TIMEOUTS)) as connected:
        yield connected


def configuration(*names: str, bundle: bytes = b"") -> JsonObject:
    config: JsonObject = {"service": {"name": "vcuda", "namespace": "kube-system", "path": "/webhook"}}
    if bundle:
        config["caBundle"] = base64.b64encode(bundle).decode()
    hooks = [
        {"name": name, "sideEffects": "None", "admissionReviewVersions": ["v1"], "clientConfig": {**config}}
        for name in names
    ]
    return {"metadata": {"name": "vcuda", "labels": {"helm": "yes"}}, "webhooks": hooks}


async def test_a_secrets_value_is_in_no_repr_and_no_error(server: ApiServer, cluster: ClusterClient) -> None:
    made = await cluster.create_secret(Secret("d", "s", {"key": b"private"}))
    assert "private" not in repr(made) + repr(Secret("d", "s", {"key": b"private"}))
    server.faults.add(Harm.BODY, body=b'{"metadata":{"name":"s"},"data":{"key":"private!"}}')
    with pytest.raises(ParseError) as error:
        await cluster.get_secret("d", "s")
    assert "private" not in error.value.message


async def test_a_lease_is_created_read_and_changed(server: ApiServer, cluster: ClusterClient) -> None:
    term = Term("a", 15, acquired="2026-01-01T00:00:00.000000Z", renewed="2026-01-01T00:00:01.000000Z")
    ref = ObjectRef("kube-system", "vcuda")
    made = await create_lease(cluster, ref, term)
    assert made == await cluster.get(LEASES, ref)
    assert made.term == term
    server.store.patch("leases", "vcuda", {"spec": {"strategy": "OldestEmulationVersion"}}, namespace="kube-system")
    with pytest.raises(KubeConflictError):
        await update_lease(cluster, made, term)
    await update_lease(cluster, await cluster.get(LEASES, ref), Term("b", 15))
    spec = server.store.get("leases", "vcuda", namespace="kube-system")["spec"]
    assert spec == {
        "holderIdentity": "b",
        "leaseDurationSeconds": 15,
        "leaseTransitions": 0,
        "strategy": "OldestEmulationVersion",
    }


async def test_kube_schedulers_lease_tells_who_leads(server: ApiServer, cluster: ClusterClient) -> None:
    now, ref = 100.0, ObjectRef("kube-system", "kube-scheduler")
    view = LeaseView(lambda: now)
    spec = {"holderIdentity": "master-1_5f", "leaseDurationSeconds": 15, "renewTime": "2020-01-01T00:00:00.000000Z"}
    server.store.create("leases", {"metadata": {"name": "kube-scheduler", "namespace": "kube-system"}, "spec": spec})
    assert view.holder == ""
    view.see((await cluster.get(LEASES, ref)).term)
    assert view.holder == "master-1_5f"
    now += 14.9
    assert view.holder == "master-1_5f"
    server.store.patch("leases", "kube-scheduler", {"metadata": {"labels": {"x": "y"}}}, namespace="kube-system")
    view.see((await cluster.get(LEASES, ref)).term)
    now += 0.1
    assert view.holder == ""  # another version is no sign of life
    server.store.patch(
        "leases", "kube-scheduler", {"spec": {"renewTime": "2020-01-01T00:00:09.000000Z"}}, namespace="kube-system"
    )
    view.see((await cluster.get(LEASES, ref)).term)
    assert view.holder == "master-1_5f"


def test_times_in_a_lease_have_six_digits_of_a_second() -> None:
    moment = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.timezone(dt.timedelta(hours=2)))
    assert micro_time(moment) == "2026-01-02T01:04:05.000000Z"


async def test_a_changed_and_a_deleted_configuration_raise_different_errors(
    server: ApiServer, cluster: ClusterClient
) -> None:
    with pytest.raises(KubeNotFoundError):
        await cluster.set_ca_bundle("vcuda", NEW)
    server.store.create("mutatingwebhookconfigurations", configuration("a.vcuda.dev"))
    server.faults.add(Harm.BODY, method="GET", body=json.dumps(stale(server)).encode())
    with pytest.raises(KubeConflictError):
        await cluster.set_ca_bundle("vcuda", NEW)


def stale(server: ApiServer) -> JsonObject:
    """The configuration as one client read it before another changed it."""
    found = server.store.get("mutatingwebhookconfigurations", "vcuda")
    server.store.patch("mutatingwebhookconfigurations", "vcuda", {"metadata": {"labels": {"new": "1"}}})
    return found


async def test_writes_wait_for_a_token_and_leases_and_reads_do_not(server: ApiServer, tmp_path: Path) -> None:
    now = 0.0
    bucket = TokenBucket(rate=100, burst=1, clock=lambda: now)
    async with ClusterClient(
        await open_transport(server.kubeconfig(tmp_path / "kc"), timeouts=TIMEOUTS), writes=bucket
    ) as client:
        made = await client.create_secret(Secret("d", "s", {}))
        lease = await create_lease(client, ObjectRef("d", "l"), Term("a", 15))
        await update_lease(client, lease, lease.term)
        await client.get_secret("d", "s")
        await client.update_secret(made, {"a": b"1"})
    assert round(bucket.reserve(), 3) == 0.02  # two were taken, this is the third
