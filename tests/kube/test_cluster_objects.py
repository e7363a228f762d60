"""Secrets, leases and webhook configurations: what was read is what is changed, and others' parts stay."""

import base64
import datetime as dt
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deviceplugin.errors import KubeConflictError, KubeNotFoundError, ParseError
from deviceplugin.kube.cluster_client import ClusterClient, Secret
from deviceplugin.kube.leader_election import Lease, LeaseView, Term, micro_time
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


async def test_a_secret_is_created_read_and_changed(server: ApiServer, cluster: ClusterClient) -> None:
    new = Secret("kube-system", "ca", {"ca.crt": b"\x00\xff", "old": b"x"}, labels={"app": "vcuda"})
    made = await cluster.create_secret(new)
    assert made == await cluster.get_secret("kube-system", "ca")
    assert made.data == {"ca.crt": b"\x00\xff", "old": b"x"}
    changed = await cluster.update_secret(made, {"ca.crt": b"2"})
    assert changed.data == {"ca.crt": b"2", "old": b"x"}
    assert server.store.get("secrets", "ca", namespace="kube-system")["metadata"]["labels"] == {"app": "vcuda"}


async def test_when_two_replicas_write_a_secret_one_gets_a_conflict(cluster: ClusterClient) -> None:
    new = Secret("kube-system", "ca", {"a": b"1"})
    made = await cluster.create_secret(new)
    with pytest.raises(KubeConflictError, match="already exists"):
        await cluster.create_secret(new)
    await cluster.update_secret(made, {"a": b"2"})
    with pytest.raises(KubeConflictError, match="modified"):
        await cluster.update_secret(made, {"a": b"3"})
    assert (await cluster.get_secret("kube-system", "ca")).data == {"a": b"2"}


async def test_no_secret_is_not_found(cluster: ClusterClient) -> None:
    with pytest.raises(KubeNotFoundError, match="get secret kube-system/nothing"):
        await cluster.get_secret("kube-system", "nothing")


async def test_a_secrets_value_is_in_no_repr_and_no_error(server: ApiServer, cluster: ClusterClient) -> None:
    made = await cluster.create_secret(Secret("d", "s", {"key": b"private"}))
    assert "private" not in repr(made) + repr(Secret("d", "s", {"key": b"private"}))
    server.faults.add(Harm.BODY, body=b'{"metadata":{"name":"s"},"data":{"key":"private!"}}')
    with pytest.raises(ParseError) as error:
        await cluster.get_secret("d", "s")
    assert "private" not in error.value.message


async def test_a_lease_is_created_read_and_changed(server: ApiServer, cluster: ClusterClient) -> None:
    term = Term("a", 15, acquired="2026-01-01T00:00:00.000000Z", renewed="2026-01-01T00:00:01.000000Z")
    made = await cluster.create_lease(Lease("kube-system", "vcuda", term))
    assert made == await cluster.get_lease("kube-system", "vcuda")
    assert made.term == term
    server.store.patch("leases", "vcuda", {"spec": {"strategy": "OldestEmulationVersion"}}, namespace="kube-system")
    with pytest.raises(KubeConflictError):
        await cluster.update_lease(made)
    now = await cluster.get_lease("kube-system", "vcuda")
    await cluster.update_lease(Lease("kube-system", "vcuda", Term("b", 15), now.version))
    spec = server.store.get("leases", "vcuda", namespace="kube-system")["spec"]
    assert spec == {
        "holderIdentity": "b",
        "leaseDurationSeconds": 15,
        "leaseTransitions": 0,
        "strategy": "OldestEmulationVersion",
    }


async def test_kube_schedulers_lease_tells_who_leads(server: ApiServer, cluster: ClusterClient) -> None:
    now = 100.0
    view = LeaseView(lambda: now)
    spec = {"holderIdentity": "master-1_5f", "leaseDurationSeconds": 15, "renewTime": "2020-01-01T00:00:00.000000Z"}
    server.store.create("leases", {"metadata": {"name": "kube-scheduler", "namespace": "kube-system"}, "spec": spec})
    assert view.holder == ""
    view.see((await cluster.get_lease("kube-system", "kube-scheduler")).term)
    assert view.holder == "master-1_5f"
    now += 14.9
    assert view.holder == "master-1_5f"
    server.store.patch("leases", "kube-scheduler", {"metadata": {"labels": {"x": "y"}}}, namespace="kube-system")
    view.see((await cluster.get_lease("kube-system", "kube-scheduler")).term)
    now += 0.1
    assert view.holder == ""  # another version is no sign of life
    server.store.patch(
        "leases", "kube-scheduler", {"spec": {"renewTime": "2020-01-01T00:00:09.000000Z"}}, namespace="kube-system"
    )
    view.see((await cluster.get_lease("kube-system", "kube-scheduler")).term)
    assert view.holder == "master-1_5f"


def test_times_in_a_lease_have_six_digits_of_a_second() -> None:
    moment = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.timezone(dt.timedelta(hours=2)))
    assert micro_time(moment) == "2026-01-02T01:04:05.000000Z"


async def test_every_webhook_gets_the_bundle_and_nothing_else_changes(
    server: ApiServer, cluster: ClusterClient
) -> None:
    server.store.create("mutatingwebhookconfigurations", configuration("a.vcuda.dev", "b.vcuda.dev", bundle=OLD))
    before = server.store.get("mutatingwebhookconfigurations", "vcuda")
    await cluster.set_ca_bundle("vcuda", OLD + NEW)
    after = server.store.get("mutatingwebhookconfigurations", "vcuda")
    wanted = base64.b64encode(OLD + NEW).decode()
    assert [hook["clientConfig"].pop("caBundle") for hook in after["webhooks"]] == [wanted, wanted]
    for hook in before["webhooks"]:
        del hook["clientConfig"]["caBundle"]
    assert (after["webhooks"], after["metadata"]["labels"]) == (before["webhooks"], {"helm": "yes"})
    version = server.store.version
    await cluster.set_ca_bundle("vcuda", OLD + NEW)
    assert server.store.version == version


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
        lease = await client.create_lease(Lease("d", "l", Term("a", 15)))
        await client.update_lease(lease)
        await client.get_secret("d", "s")
        await client.update_secret(made, {"a": b"1"})
    assert round(bucket.reserve(), 3) == 0.02  # two were taken, this is the third
