"""CustomResourceDefinitions of cert-manager, OpenShift and the Prometheus operator, as they publish them.

In: go.mod and go.sum of this folder, which pin the projects' Go modules; Go, and its proxy or its cache. Out: the
definitions by kind.
"""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import yaml

from sandbox.emulated_gpus import REPOSITORY
from tests.daemonset.chart import Object
from tests.programs import unavailable

_HERE = Path(__file__).parent
_FOLDERS = {
    "github.com/cert-manager/cert-manager": "deploy/crds",
    "github.com/openshift/api": "security/v1/zz_generated.crd-manifests",
    "github.com/prometheus-operator/prometheus-operator": "example/prometheus-operator-crd",
}
"""Of each module."""
_KINDS = {
    "Certificate": "certificates.yaml",
    "Issuer": "_issuers.yaml",
    "PodMonitor": "podmonitors.yaml",
    "PrometheusRule": "prometheusrules.yaml",
    "SecurityContextConstraints": "securitycontextconstraints.crd.yaml",
    "ServiceMonitor": "servicemonitors.yaml",
}
"""How the names of their files end."""


@cache
def definitions() -> Mapping[str, Object]:
    """By kind."""
    files = [file for folder in _folders() for file in folder.iterdir()]
    return {kind: _definition(kind, [file for file in files if file.name.endswith(_KINDS[kind])]) for kind in _KINDS}


def _definition(kind: str, files: list[Path]) -> Object:
    (file,) = files
    found: Object = yaml.load(file.read_text(), yaml.CSafeLoader)
    assert (found["kind"], found["spec"]["names"]["kind"]) == ("CustomResourceDefinition", kind)
    return found


def _folders() -> Iterator[Path]:
    modules = json.loads("[" + _download().replace("}\n{", "},{") + "]")
    return (Path(each["Dir"]) / _FOLDERS[each["Path"]] for each in modules)


def _download() -> str:
    """What Go says of the modules, one JSON object after the other."""
    environment = {**os.environ, "GOFLAGS": "-mod=readonly", "GOTOOLCHAIN": "local", "GOWORK": "off"}
    script = 'go=$("$1/scripts/go" .) && exec "$go" mod download -json'
    done = subprocess.run(
        ["bash", "-c", script, "download", str(REPOSITORY)],
        cwd=_HERE,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        unavailable(f"Go could not fetch the modules of {_HERE / 'go.mod'}, as it says above.")
    return done.stdout
