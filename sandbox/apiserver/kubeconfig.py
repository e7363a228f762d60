"""A kubeconfig for the stand-in, as kubectl and the agent read it."""

import base64
from pathlib import Path

import yaml


def write_kubeconfig(
    path: Path,
    server: str,
    *,
    token: str = "",
    token_file: Path | None = None,
    ca: bytes = b"",
    client_certificate: bytes = b"",
    client_key: bytes = b"",
) -> Path:
    """Writes one cluster, one user and one context; certificates and keys are PEM and stand inline."""
    cluster: dict[str, str] = {"server": server}
    if ca:
        cluster["certificate-authority-data"] = base64.b64encode(ca).decode()
    user: dict[str, str] = {}
    if token:
        user["token"] = token
    if token_file:
        user["tokenFile"] = str(token_file)
    if client_certificate:
        user["client-certificate-data"] = base64.b64encode(client_certificate).decode()
        user["client-key-data"] = base64.b64encode(client_key).decode()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "stand-in",
        "clusters": [{"name": "stand-in", "cluster": cluster}],
        "users": [{"name": "stand-in", "user": user}],
        "contexts": [{"name": "stand-in", "context": {"cluster": "stand-in", "user": "stand-in"}}],
    }
    path.write_text(yaml.safe_dump(config))
    path.chmod(0o600)
    return path
