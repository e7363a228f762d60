"""Replicas that sign with the CA of one Secret, the stand-in API server that holds it, and a clock that a test sets."""

import base64
import datetime as dt
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature

from deviceplugin.cluster.certificates.issuer import Issuer
from deviceplugin.cluster.certificates.keypair import KeyPair, ServerTls, is_valid, make_ca, read_chain
from deviceplugin.kube.cluster_client import ClusterClient
from sandbox.apiserver import ApiServer
from tests.kube.kubeconfigs import open_transport

DAY = dt.timedelta(days=1)
START = dt.datetime(2026, 11, 21, tzinfo=dt.UTC)
NAMESPACE, SECRET, CONFIGURATION = "gpu", "vcuda-scheduler-tls", "vcuda-scheduler"
SECRETS, HOOKS = "secrets", "mutatingwebhookconfigurations"
NAMES = ("vcuda-scheduler.gpu.svc", "127.0.0.1", "::1")


class Scene:
    """`now` is the time of every replica that is not given another clock, and of the clients."""

    def __init__(self, api: ApiServer, client: ClusterClient) -> None:
        self.api = api
        self.client = client
        self.now = START

    def replica(self, configuration: str = CONFIGURATION, *, ahead: dt.timedelta = DAY * 0) -> Issuer:
        tls = ServerTls(make_ca(START, DAY))
        return Issuer(self.client, tls, NAMESPACE, SECRET, configuration, NAMES, now=lambda: self.now + ahead)

    @property
    def has_secret(self) -> bool:
        return bool(self.api.store.objects(SECRETS, namespace=NAMESPACE))

    @property
    def secret(self) -> dict[str, Any]:
        return self.api.store.get(SECRETS, SECRET, namespace=NAMESPACE)

    @property
    def data(self) -> dict[str, bytes]:
        return {key: base64.b64decode(text) for key, text in self.secret["data"].items()}

    def put(self, data: dict[str, bytes], *, labels: dict[str, str] | None = None) -> None:
        """Somebody edits the Secret, or creates it; the labels of one that exists stay if no others are given."""
        encoded = {key: base64.b64encode(content).decode() for key, content in data.items()}
        if self.has_secret:
            found = self.secret
            meta = found["metadata"] if labels is None else {**found["metadata"], "labels": labels}
            self.api.store.replace(SECRETS, SECRET, {**found, "metadata": meta, "data": encoded}, namespace=NAMESPACE)
        else:
            made = {"metadata": {"name": SECRET, "labels": labels or {}}, "type": "Opaque", "data": encoded}
            self.api.store.create(SECRETS, made, namespace=NAMESPACE)

    def delete(self) -> None:
        if self.has_secret:
            self.api.store.delete(SECRETS, SECRET, namespace=NAMESPACE)

    @property
    def bundles(self) -> list[bytes]:
        hooks = self.api.store.get(HOOKS, CONFIGURATION)["webhooks"]
        return [base64.b64decode(each["clientConfig"].get("caBundle", "")) for each in hooks]

    def configure(self, *bundles: bytes) -> None:
        """A webhook configuration with these caBundles."""
        if self.api.store.objects(HOOKS):
            self.api.store.delete(HOOKS, CONFIGURATION)
        service = {"name": "vcuda-scheduler", "namespace": NAMESPACE, "path": "/webhook"}
        hooks = [
            {
                "name": f"{number}.vcuda.tencent.com",
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
                "clientConfig": {"service": service, "caBundle": base64.b64encode(bundle).decode()},
            }
            for number, bundle in enumerate(bundles)
        ]
        self.api.store.create(HOOKS, {"metadata": {"name": CONFIGURATION}, "webhooks": hooks})

    def trusts(self, replica: Issuer) -> bool:
        """Whether a client with the right time accepts what the replica shows, by the caBundle alone."""
        shown = replica.tls.shown.certificate
        (bundle,) = set(self.bundles)
        (ca,) = read_chain(bundle)
        try:
            shown.verify_directly_issued_by(ca)
        except (ValueError, TypeError, InvalidSignature):
            return False
        return is_valid(shown, self.now) and is_valid(ca, self.now)

    @property
    def writes(self) -> int:
        return sum(method != "GET" for method, _ in self.api.requests)


@asynccontextmanager
async def cluster() -> AsyncIterator[Scene]:
    """With an empty webhook configuration, and no Secret."""
    with tempfile.TemporaryDirectory() as folder:
        async with (
            ApiServer() as api,
            ClusterClient(await open_transport(api.kubeconfig(Path(folder) / "kubeconfig"))) as client,
        ):
            scene = Scene(api, client)
            scene.configure(b"", b"")
            yield scene


def keys(pair: KeyPair) -> dict[str, bytes]:
    return {"ca.crt": pair.chain, "ca.key": pair.key}
