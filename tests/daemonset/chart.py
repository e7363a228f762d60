"""The chart rendered: objects by kind and name, and the sentence with which wrong values are refused.

In: Helm and values. Out: decoded objects. Not here: what they must say.
Invariant: in CI (`CI=true`) a Helm that cannot be had is a failure; elsewhere it is a skip that says why.
"""

import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from deviceplugin.config.scheduler import SCHEDULER, SchedulerSettings
from scripts import manifests
from tests.config.resolving import resolve

Object = dict[str, Any]
NAMESPACE = "gpu-system"


@dataclass(frozen=True, slots=True)
class Rendered:
    """What one set of values gives."""

    objects: Mapping[tuple[str, str], Object]

    def __iter__(self) -> Iterator[Object]:
        return iter(self.objects.values())

    @property
    def installed(self) -> "Rendered":
        """Without what is there only while `helm test` runs."""
        hooks = {key for key, each in self.objects.items() if "helm.sh/hook" in each["metadata"].get("annotations", {})}
        return Rendered({key: each for key, each in self.objects.items() if key not in hooks})

    def get(self, kind: str, name: str) -> Object:
        return self.objects[kind, name]

    def names(self, kind: str) -> set[str]:
        return {name for found, name in self.objects if found == kind}

    @property
    def agent(self) -> Object:
        pod: Object = self.get("DaemonSet", "vcuda-agent")["spec"]["template"]["spec"]
        return pod

    @property
    def scheduler(self) -> Object:
        pod: Object = self.get("Deployment", "vcuda-scheduler")["spec"]["template"]["spec"]
        return pod

    @property
    def extender(self) -> Object:
        """Our container: a sidecar of kube-scheduler, or alone in its pod."""
        pod = self.scheduler
        (container,) = pod["initContainers"] if "initContainers" in pod else pod["containers"]
        found: Object = container
        return found

    @property
    def configuration(self) -> Object:
        """KubeSchedulerConfiguration, as kube-scheduler will read it."""
        text = self.get("ConfigMap", "vcuda-scheduler")["data"]["kube-scheduler.yaml"]
        decoded: Object = yaml.safe_load(text)
        return decoded

    @property
    def webhook(self) -> Object:
        (hook,) = self.get("MutatingWebhookConfiguration", "vcuda-scheduler")["webhooks"]
        found: Object = hook
        return found


def helm_program(request: pytest.FixtureRequest) -> str:
    """The path of Helm; the first time it is built, in plain sight, for it takes minutes."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    try:
        with capture.global_and_fixture_disabled():
            return manifests.helm()
    except subprocess.CalledProcessError:
        cause = "scripts/helm/build could not build Helm; its words stand above."
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI must test the chart. {cause}", pytrace=False)
    pytest.skip(f"THE CHART WAS NOT TESTED. {cause}")


def documents(text: str) -> list[Object]:
    """By libyaml's parser, which is nine times as fast."""
    return [each for each in yaml.load_all(text, yaml.CSafeLoader) if each]


def render(helm: str, values: Object | None = None, *, folder: Path, namespace: str = NAMESPACE) -> Rendered:
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(values or {}))
    decoded = documents(manifests.render(helm, f"--values={file}", namespace=namespace))
    objects = {(each["kind"], _name(each, namespace)): each for each in decoded}
    assert len(objects) == len(decoded), "two objects of one kind and name"
    return Rendered(objects)


def _name(each: Object, release: str) -> str:
    """With its namespace where that is one of the tenants'."""
    found, name = each["metadata"].get("namespace", release), str(each["metadata"]["name"])
    return name if found in (release, "kube-system") else f"{found}/{name}"


def settings(rendered: Rendered) -> SchedulerSettings:
    """The extender's settings: arguments and environment, parsed by its own code."""
    container = rendered.extender
    command, *flags = container["args"]
    assert command == "scheduler"
    given = dict(flag.removeprefix("--").split("=", 1) for flag in flags)
    assert set(given) <= {setting.flag for setting in SCHEDULER.settings}
    env = {each["name"]: each.get("value", "vcuda-scheduler-0") for each in container["env"]}
    return resolve(SCHEDULER, flags=given, env=env).settings


def refusal(helm: str, values: Object, *flags: str, folder: Path) -> str:
    """What Helm says to values that it must not take."""
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    command = [helm, "template", "vcuda", str(manifests.CHART), f"--values={file}", "--kube-version=1.36.2", *flags]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode != 0, f"taken: {values}"
    return done.stderr


def lint(helm: str, *flags: str) -> None:
    command = [helm, "lint", "--strict", str(manifests.CHART), "--kube-version=1.36.2", *flags]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout
