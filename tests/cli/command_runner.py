"""Runs a command as an operator does, against `view_server`."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml
from click.testing import CliRunner, Result

from deviceplugin.cli import main
from tests.cli.view_server import Cluster, serving


def kubeconfig(
    path: Path, server: str, *, namespace: str = "", name: str = "stand-in", others: Sequence[str] = ()
) -> Path:
    """`others`: namespaces of further contexts of the cluster."""
    context = {"cluster": name, "user": name} | ({"namespace": namespace} if namespace else {})
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{"name": name, "cluster": {"server": server}}],
        "users": [{"name": name, "user": {"token": "asker"}}],
        "contexts": [
            {"name": name, "context": context},
            *({"name": each, "context": {**context, "namespace": each}} for each in others),
            {"name": "elsewhere", "context": {"cluster": "elsewhere", "user": name, "namespace": "elsewhere"}},
        ],
    }
    path.write_text(yaml.safe_dump(document))
    return path


async def vcuda(
    cluster: Cluster,
    folder: Path,
    *args: str,
    namespace: str = "research",
    others: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> Result:
    async with serving(cluster) as url:
        path = kubeconfig(folder / "kubeconfig", url, namespace=namespace, others=others)
        return await run(*args, env={"KUBECONFIG": str(path), **(env or {})})


async def run(*args: str, env: Mapping[str, str] | None = None) -> Result:
    clean: dict[str, str | None] = {"KUBECONFIG": None, "COLUMNS": None, "KUBERNETES_SERVICE_HOST": None}
    clean |= {"HOME": os.devnull, **(env or {})}
    return await asyncio.to_thread(CliRunner().invoke, main, args, env=clean, prog_name="vcuda")
