"""A Secret and a webhook configuration in memory, with the API server's rules: versions, conflicts, refusals."""

from collections.abc import Mapping

from deviceplugin.cluster.certificates.keeper import Stored
from deviceplugin.errors import KubeConflictError, KubeError


class SecretInMemory:
    """`refuse` makes that many of the next calls fail; `before_write` runs in between, as another replica would."""

    def __init__(self) -> None:
        self.stored: Stored | None = None
        self.refuse = 0
        self.writes = 0
        self._version = 0

    async def read(self) -> Stored | None:
        self._maybe_refuse()
        return self.stored

    async def create(self, data: Mapping[str, bytes]) -> None:
        self._maybe_refuse()
        if self.stored is not None:
            raise KubeConflictError("it exists", code=409)
        self.put(data)

    async def replace(self, data: Mapping[str, bytes], *, version: str) -> None:
        self._maybe_refuse()
        if self.stored is None or self.stored.version != version:
            raise KubeConflictError("it changed", code=409)
        self.put(data)

    def put(self, data: Mapping[str, bytes]) -> None:
        self._version += 1
        self.writes += 1
        self.stored = Stored(dict(data), str(self._version))

    def _maybe_refuse(self) -> None:
        if self.refuse:
            self.refuse -= 1
            raise KubeError("the API server could not be asked", code=500)


class TrustInMemory:
    """The bundles of two webhooks; None where there is no configuration. `history` is every bundle so far."""

    def __init__(self, bundle: bytes = b"") -> None:
        self.bundles: tuple[bytes, ...] | None = (bundle, bundle)
        self.history: list[bytes] = []
        self.refuse = 0

    async def read(self) -> tuple[bytes, ...] | None:
        return self.bundles

    async def write(self, bundle: bytes) -> None:
        if self.refuse:
            self.refuse -= 1
            raise KubeError("the API server could not be asked", code=500)
        assert self.bundles is not None
        self.bundles = (bundle, bundle)
        self.history.append(bundle)
