"""Renders the plain manifests from daemonset/chart, so that they need no Helm and cannot say anything else.

In: the chart, and Helm (scripts/helm/build). Out: the files of FILES below daemonset/, or with --check an exit
status that says whether what is committed is the same. Run as scripts/manifests.
Not here: kustomization.yaml files, components of patches and the sample pods, which are written by hand.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "daemonset" / "chart"
BUILD = ROOT / "scripts" / "helm" / "build"
NAMESPACE = "kube-system"
KUBERNETES = "1.36.2"  # decides the image of kube-scheduler; `images` of a kustomization changes it
APIS = ("cert-manager.io/v1", "monitoring.coreos.com/v1")  # of others, which the chart asks for before it uses them
CLUSTER = ("--kube-version", KUBERNETES, *(f"--api-versions={api}" for api in APIS))
GENERATED = "# made by scripts/manifests from daemonset/chart; edit the chart instead\n"

FILES = {
    "base/serviceaccount.yaml": "agent/serviceaccount.yaml",
    "base/clusterrole.yaml": "agent/clusterrole.yaml",
    "base/daemonset.yaml": "agent/daemonset.yaml",
    "base/confined.yaml": "agent/confined.yaml",
    "base/service.yaml": "agent/service.yaml",
    "components/network-policy/networkpolicy.yaml": "agent/networkpolicy.yaml",
    "scheduler/serviceaccount.yaml": "scheduler/serviceaccount.yaml",
    "scheduler/rbac.yaml": "scheduler/rbac.yaml",
    "scheduler/operators.yaml": "scheduler/operators.yaml",
    "scheduler/view.yaml": "scheduler/view.yaml",
    "scheduler/configmap.yaml": "scheduler/configmap.yaml",
    "scheduler/deployment.yaml": "scheduler/deployment.yaml",
    "scheduler/service.yaml": "scheduler/service.yaml",
    "scheduler/poddisruptionbudget.yaml": "scheduler/poddisruptionbudget.yaml",
    "scheduler/webhook.yaml": "scheduler/webhook.yaml",
    "scheduler/policy.yaml": "scheduler/policy.yaml",
}
"""Each manifest below daemonset/ and the template that it is rendered from."""

_OF_HELM = re.compile(r"^ +(?:helm[.]sh/chart|app[.]kubernetes[.]io/managed-by): .*\n", re.MULTILINE)
"""Labels of a release, which objects of `kubectl apply` are not in."""

_SOURCE = re.compile(r"^---\n# Source: vcuda/templates/(.*)\n", re.MULTILINE)


def helm() -> str:
    """The path of Helm, built when it is not there yet."""
    return subprocess.run([BUILD], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def render(program: str, *flags: str, namespace: str = NAMESPACE, chart: Path = CHART) -> str:
    """What `helm template` says to the chart, with whatever values the flags set, where all kinds are known."""
    command = [program, "template", "vcuda", str(chart), "--namespace", namespace, *CLUSTER, *flags]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def by_template(rendered: str) -> dict[str, str]:
    """The text of each template; Helm puts its documents apart when it has several."""
    _, *parts = _SOURCE.split(rendered)
    found: dict[str, list[str]] = {}
    for template, text in zip(parts[::2], parts[1::2], strict=True):
        found.setdefault(template, []).append(text.strip("\n") + "\n")
    return {template: "---\n".join(texts) for template, texts in found.items()}


def manifests() -> dict[str, str]:
    """The text of each file of FILES."""
    # A file has neither a CA nor a token of its own.
    values = "agent.networkPolicy.enabled=true,agent.names=all,webhook.certificates.patch=true"
    texts = by_template(render(helm(), f"--set={values}"))
    return {file: GENERATED + _OF_HELM.sub("", texts[template]) for file, template in FILES.items()}


def main(arguments: list[str]) -> int:
    stale = []
    for file, text in manifests().items():
        path = ROOT / "daemonset" / file
        if "--check" not in arguments:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            stale.append(file)
    if stale:
        print(f"not as the chart renders them: {', '.join(stale)}; run scripts/manifests", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except subprocess.CalledProcessError as error:
        sys.exit(f"manifests: {Path(error.cmd[0]).name} failed, as it says above; nothing was written")
