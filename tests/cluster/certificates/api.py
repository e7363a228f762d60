"""A Secret and a webhook configuration in memory, with the API server's rules: versions, conflicts, refusals."""

from collections.abc import Mapping

from deviceplugin.errors import KubeConflictError, KubeError, KubeNotFoundError
from deviceplugin.kube.cluster_client import Secret


class ApiInMemory:
    """`refuse` makes that many of the next calls fail, `refuse_bundle` that many of the next changes of the caBundle.

    `bundles` are those of two webhooks, None where there is no configuration.
    """

    def __init__(self) -> None:
        self.secret: Secret | None = None
        self.annotations: Mapping[str, str] = {}
        self.bundles: tuple[bytes, ...] | None = (b"", b"")
        self.refuse = 0
        self.refuse_bundle = 0
        self.refusal = KubeError("the API server could not be asked", code=500)
        self.writes = 0
        self._version = 0

    async def get_secret(self, namespace: str, name: str) -> Secret:
        self._maybe_refuse()
        if self.secret is None:
            raise KubeNotFoundError(f"secret {name} does not exist", code=404)
        return self.secret

    async def create_secret(self, secret: Secret) -> Secret:
        self._maybe_refuse()
        if self.secret is not None:
            raise KubeConflictError("it exists", code=409)
        self.annotations = secret.annotations
        return self.put(secret.data)

    async def update_secret(self, secret: Secret, data: Mapping[str, bytes | None]) -> Secret:
        self._maybe_refuse()
        if self.secret is None or self.secret.version != secret.version:
            raise KubeConflictError("it changed", code=409)
        merged = {**self.secret.data, **data}
        return self.put({key: content for key, content in merged.items() if content is not None})

    def put(self, data: Mapping[str, bytes]) -> Secret:
        self._version += 1
        self.writes += 1
        self.secret = Secret("gpu", "vcuda-scheduler-tls", dict(data), version=str(self._version))
        return self.secret

    async def get_ca_bundles(self, configuration: str) -> tuple[bytes, ...]:
        if self.bundles is None:
            raise KubeNotFoundError(f"webhook configuration {configuration} does not exist", code=404)
        return self.bundles

    async def set_ca_bundle(self, configuration: str, bundle: bytes) -> None:
        if self.refuse_bundle:
            self.refuse_bundle -= 1
            raise self.refusal
        assert self.bundles is not None
        self.bundles = (bundle, bundle)

    def _maybe_refuse(self) -> None:
        if self.refuse:
            self.refuse -= 1
            raise KubeError("the API server could not be asked", code=500)
