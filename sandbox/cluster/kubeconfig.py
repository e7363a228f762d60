"""kubeconfig files.

In: a server, its CA and one identity. Out: a file (JSON, which is YAML). Not here: issuing identities.
Invariant: everything is embedded, so the file works wherever it is copied to.
"""

import base64
import json
from collections.abc import Sequence
from pathlib import Path

from sandbox.cluster.certificates import KeyPair


def write_kubeconfig(
    path: Path, *, server: str, ca: Path, identity: KeyPair | str, namespaces: Sequence[str] = ()
) -> Path:
    """`identity` is a client certificate or a bearer token. `namespaces`: of each a further context of that name."""
    user = {"token": identity} if isinstance(identity, str) else _certificate_user(identity)
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "e2e", "cluster": {"server": server, "certificate-authority-data": _embedded(ca)}}],
        "users": [{"name": "e2e", "user": user}],
        "contexts": [
            {"name": "e2e", "context": {"cluster": "e2e", "user": "e2e"}},
            *({"name": each, "context": {"cluster": "e2e", "user": "e2e", "namespace": each}} for each in namespaces),
        ],
        "current-context": "e2e",
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(document, indent=2))
    return path


def _certificate_user(pair: KeyPair) -> dict[str, str]:
    return {"client-certificate-data": _embedded(pair.certificate), "client-key-data": _embedded(pair.key)}


def _embedded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
