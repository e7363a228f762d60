"""The chart rendered: objects by kind and name, and the sentence with which wrong values are refused.

In: Helm and values. Out: decoded objects. Not here: what they must say.
Invariants: in CI (`CI=true`) a Helm that cannot be had is a failure; elsewhere it is a skip that says why. A set of
values is rendered once in a run of the tests, a group of sets by one process of Helm, and nobody sees what another test
does to its objects.
"""

import hashlib
import os
import pickle
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from deviceplugin.config.scheduler import SCHEDULER, SchedulerSettings
from scripts import manifests
from tests.config.resolving import resolve

Object = dict[str, Any]
NAMESPACE = "gpu-system"
CARRIER = "notes-of-the-chart"
SOURCE = re.compile(r"^---\n# Source: outer/charts/part(\d+)/templates/", re.MULTILINE)
"""What stands before each object of `Chart.below_one`, with the number of its set."""
_CARRIER = f"""kind: ConfigMap
metadata: {{name: {CARRIER}}}
data:
  notes: {{{{ include "notes" . | toJson }}}}
"""


@dataclass(frozen=True, slots=True)
class Rendered:
    """What one set of values gives; `notes` is what Helm prints after installing it."""

    objects: Mapping[tuple[str, str], Object]
    notes: str = ""

    def __iter__(self) -> Iterator[Object]:
        return iter(self.objects.values())

    @property
    def installed(self) -> "Rendered":
        """Without what is there only while `helm test` runs."""
        hooks = {key for key, each in self.objects.items() if "helm.sh/hook" in each["metadata"].get("annotations", {})}
        return Rendered({key: each for key, each in self.objects.items() if key not in hooks}, self.notes)

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


def environment() -> dict[str, str]:
    """Helm is gone before it would have to collect its garbage, a quarter of its processor time."""
    return {**os.environ, "GOGC": "400"}


def documents(text: str) -> list[Object]:
    """By libyaml's parser, which is nine times as fast."""
    return [each for each in yaml.load_all(text, yaml.CSafeLoader) if each]


@dataclass(frozen=True, slots=True)
class Chart:
    """The chart and its notes. `folder` keeps what was rendered, for every process of a run of the tests."""

    helm: str
    folder: Path

    def render(self, values: Object | None = None, *flags: str, namespace: str = NAMESPACE) -> Rendered:
        """The objects where all kinds are known; `flags` may say otherwise."""
        found, said = self._said(values, f"--namespace={namespace}", *manifests.CLUSTER, *flags)
        assert found, said
        notes = next(each for each in found if each["metadata"]["name"] == CARRIER)
        found.remove(notes)
        objects = {(each["kind"], _name(each, namespace)): each for each in found}
        assert len(objects) == len(found), "two objects of one kind and name"
        return Rendered(objects, notes["data"]["notes"])

    def render_all(self, sets: Mapping[str, Object], *flags: str) -> dict[str, Rendered]:
        """Each set of values by its name; one process of Helm renders those that were not rendered yet."""
        asked = (f"--namespace={NAMESPACE}", *manifests.CLUSTER, *flags)
        missing = {at: values for at, values in enumerate(sets.values()) if not self._file(values, asked).exists()}
        if len(missing) > 1:
            done = self.below_one(missing, *asked)
            assert done.returncode == 0, done.stderr
            for at, text in _parts(done.stdout).items():
                self._keep(self._file(missing[at], asked), (documents(text), ""))
        return {name: self.render(values, *flags) for name, values in sets.items()}

    def below_one(self, sets: Mapping[int, Object], *flags: str) -> subprocess.CompletedProcess[str]:
        """The chart below an outer one, once for each set of values, by the name `partN`."""
        outer = self.folder / f"outer-{os.getpid()}"
        if not outer.exists():
            (outer / "charts").mkdir(parents=True)
            (outer / "charts" / "vcuda").symlink_to(self.with_notes())
        parts = [{"name": "vcuda", "version": "0.1.0", "alias": f"part{at}"} for at in sets]
        head = {"apiVersion": "v2", "name": "outer", "version": "1.0.0", "dependencies": parts}
        (outer / "Chart.yaml").write_text(yaml.safe_dump(head))
        (outer / "values.yaml").write_text(yaml.safe_dump({f"part{at}": values for at, values in sets.items()}))
        command = [self.helm, "template", "vcuda", str(outer), *flags]
        return subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)

    def refusal(self, values: Object | None = None, *flags: str, version: str = manifests.KUBERNETES) -> str:
        """What Helm says to values that it must not take."""
        found, said = self._said(values, f"--kube-version={version}", *flags)
        assert not found, f"taken: {values} {flags}"
        return said

    def _said(self, values: Object | None, *flags: str) -> tuple[list[Object], str]:
        file = self._file(values, flags)
        if not file.exists():
            given = file.with_suffix(f".{os.getpid()}.yaml")
            given.write_text(yaml.safe_dump(values or {}))
            command = [self.helm, "template", "vcuda", str(self.with_notes()), f"--values={given}", *flags]
            done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
            self._keep(file, (documents(done.stdout), done.stderr))
        found: tuple[list[Object], str] = pickle.loads(file.read_bytes())
        return found

    def _file(self, values: Object | None, flags: Sequence[str]) -> Path:
        asked = yaml.safe_dump([values or {}, list(flags)])
        return self.folder / hashlib.sha256(asked.encode()).hexdigest()

    def _keep(self, file: Path, found: tuple[list[Object], str]) -> None:
        unfinished = file.with_suffix(f".{os.getpid()}")
        unfinished.write_bytes(pickle.dumps(found))
        unfinished.rename(file)

    def with_notes(self) -> Path:
        """A copy of the chart that renders its notes too: `helm template` leaves them out."""
        copy = self.folder / f"chart-{os.getpid()}"
        if not copy.exists():
            shutil.copytree(manifests.CHART, copy)
            templates = copy / "templates"
            text = (templates / "NOTES.txt").read_text()
            (templates / "_notes.tpl").write_text('{{ define "notes" }}' + text + "{{ end }}")
            (templates / "notes.yaml").write_text(_CARRIER)
        return copy


def _parts(text: str) -> dict[int, str]:
    """What `below_one` rendered of each set, with the label that a chart of its own has."""
    parts: dict[int, str] = {}
    _, *pieces = SOURCE.split(text)
    for number, piece in zip(map(int, pieces[::2]), pieces[1::2], strict=True):
        own = piece.replace(f"helm.sh/chart: part{number}-", "helm.sh/chart: vcuda-")
        parts[number] = f"{parts.get(number, '')}---\n# {own}"
    return parts


def render(helm: str, values: Object | None = None, *, folder: Path, namespace: str = NAMESPACE) -> Rendered:
    """For tests that have no `chart`; `folder` may be used again."""
    return Chart(helm, folder).render(values, namespace=namespace)


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


def lint(helm: str, *flags: str) -> None:
    command = [helm, "lint", "--strict", str(manifests.CHART), "--kube-version=1.36.2", *flags]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout
