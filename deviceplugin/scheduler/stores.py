"""Secret and caBundle of the cluster as `certificates` wants them.

In: the client. Out: its `SecretStore` and `TrustStore`. Versions travel with what was read, so that nobody's change is
overwritten.
"""

from collections.abc import Mapping

from deviceplugin.cluster.certificates.keeper import Stored
from deviceplugin.errors import KubeConflictError, KubeNotFoundError
from deviceplugin.kube.cluster_client import ClusterClient
from deviceplugin.kube.secrets import NewSecret, Secret

_LABELS = {"app.kubernetes.io/name": "vcuda-scheduler"}


class ClusterSecret:
    """One Secret by name."""

    def __init__(self, client: ClusterClient, namespace: str, name: str) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._read: Secret | None = None

    async def read(self) -> Stored | None:
        try:
            self._read = await self._client.get_secret(self._namespace, self._name)
        except KubeNotFoundError:
            self._read = None
            return None
        return Stored(self._read.data, self._read.version)

    async def create(self, data: Mapping[str, bytes]) -> None:
        await self._client.create_secret(NewSecret(self._namespace, self._name, data, labels=_LABELS))

    async def replace(self, data: Mapping[str, bytes], *, version: str) -> None:
        secret = self._read
        if secret is None or secret.version != version:
            raise KubeConflictError(f"secret {self._name} has changed meanwhile", code=409)
        surplus: dict[str, bytes | None] = dict.fromkeys(secret.data.keys() - data.keys())
        await self._client.update_secret(secret, {**surplus, **data})


class ClusterTrust:
    """The webhooks of one MutatingWebhookConfiguration."""

    def __init__(self, client: ClusterClient, configuration: str) -> None:
        self._client = client
        self._configuration = configuration

    async def read(self) -> tuple[bytes, ...] | None:
        try:
            return await self._client.get_ca_bundles(self._configuration)
        except KubeNotFoundError:
            return None

    async def write(self, bundle: bytes) -> None:
        await self._client.set_ca_bundle(self._configuration, bundle)
