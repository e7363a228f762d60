"""Kubeconfigs of every form, and a client that goes by one of them."""

import base64
import json
from pathlib import Path
from typing import Any

import yaml

from deviceplugin.kube.client import KubeClient
from deviceplugin.kube.credentials import Access, Credentials, access_of, read
from deviceplugin.kube.pods import pods_of_node
from deviceplugin.kube.transport import CONNECTIONS, DEFAULT_TIMEOUTS, Timeouts, Transport
from sandbox.apiserver import ApiServer
from sandbox.apiserver.kubeconfig import write_kubeconfig
from sandbox.cluster.certificates import ClusterCa

PODS = pods_of_node("n1")
TIMEOUTS = Timeouts(connect=30.0, request=30.0, silence=5.0)
JWT = ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in (b"{}", b'{"sub":"agent"}', b"sig"))


def load(kubeconfig: Path | None) -> Access:
    """In this process, for speed."""
    return access_of(read(kubeconfig), where="it")


async def open_transport(
    kubeconfig: Path | None,
    *,
    timeouts: Timeouts = DEFAULT_TIMEOUTS,
    credentials: Credentials | None = None,
    connections: int = CONNECTIONS,
) -> Transport:
    """With its credentials, which are read in this process, for speed: it may take longer than a request may."""
    credentials = credentials or Credentials(kubeconfig)
    await credentials.access()
    return Transport(credentials, timeouts=timeouts, connections=connections)


async def ask(kubeconfig: Path | None) -> None:
    async with KubeClient(await open_transport(kubeconfig, timeouts=TIMEOUTS)) as client:
        await client.list(PODS)


def config(server: ApiServer, path: Path, user: dict[str, Any], *, cluster: dict[str, Any] | None = None) -> Path:
    """A kubeconfig with this user; other forms than `write_kubeconfig` knows."""
    write_kubeconfig(path, server.url)
    document = yaml.safe_load(path.read_text())
    document["users"][0]["user"] = user
    document["clusters"][0]["cluster"] |= cluster or {}
    path.write_text(yaml.safe_dump(document))
    return path


def plugin(tmp_path: Path, status: dict[str, str]) -> dict[str, Any]:
    answer = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}
    script = tmp_path / "plugin"
    script.write_text(f"#!/bin/sh\necho run >> {tmp_path}/runs\ncat {tmp_path}/answer\n")
    script.chmod(0o755)
    (tmp_path / "answer").write_text(json.dumps(answer))
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(script)}}


def trusting(ca: ClusterCa) -> dict[str, str]:
    return {"certificate-authority-data": base64.b64encode(ca.certificate.read_bytes()).decode()}
