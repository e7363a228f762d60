"""The archive itself: a .tar.gz that is written while it is gathered, and its index.

In: texts and documents with their names. Out: a file that only its owner may read, complete or not there. Invariants:
every member has been redacted; one member is in memory at a time, and a large one on the disk; the index is the last
member, and names what could not be read and why.

Redaction removes what must not leave a cluster: from text by its form, from objects by keeping only what is named.

In: lines of logs, metrics and events; objects of Kubernetes as JSON. Out: the same without bearer tokens, JSON web
tokens, private keys and assignments to names such as `password`; objects with the listed fields. Flags of vcuda's own
programs keep their values, all other arguments and every environment variable lose them.
"""

import json
import os
import re
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, Any

import msgspec

from deviceplugin.config.agent import AGENT
from deviceplugin.config.scheduler import SCHEDULER
from deviceplugin.errors import ConfigError, VcudaError

Json = dict[str, Any]
Form = Any
"""A mapping of names to forms, a list of one form, or a function."""
REMOVED = "[removed]"
_TOKENS = (
    re.compile(r"(?i)\b(bearer|basic)(\s+)[A-Za-z0-9._~+/=-]{6,}"),
    re.compile(r"\b(eyJ)()[A-Za-z0-9_-]{5,}(?:\.[A-Za-z0-9_-]+){1,4}"),
    re.compile(
        r"(?i)([A-Za-z0-9_.-]*(?:password|passwd|secret|token|api[_-]?key|credential)[A-Za-z0-9_.-]*)"
        r"(\"?\s*[=:]\s*\"?)[^\s\",;&}\]]{3,}"
    ),
    re.compile(r"(://)()[^/\s:@]+:[^/\s@]+(?=@)"),
)
_NAMES_A_SECRET = re.compile(r"(?i)password|passwd|^token$|api_?key|credential|private_?key")
_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
_KEY_BEGIN, _KEY_END = (
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----"),
    re.compile(r"-----END [A-Z ]*PRIVATE KEY-----"),
)
_FLAGS = {each.flag for program in (AGENT, SCHEDULER) for each in program.settings}
_COMMANDS = {AGENT.command, SCHEDULER.command, "doctor", "node"}
_KEPT_ANNOTATIONS = ("deployment.kubernetes.io/revision", "meta.helm.sh/release-name", "meta.helm.sh/release-namespace")


def text(line: str) -> str:
    """One piece of text; a private key is removed whole, also where it is cut off."""
    found = _KEY.sub(REMOVED, line)
    for pattern in _TOKENS:
        found = pattern.sub(rf"\1\2{REMOVED}", found)
    return found


class Lines:
    """A log, line by line: a key may go over several."""

    def __init__(self) -> None:
        self._in_key = False

    def clean(self, line: str) -> str:
        if self._in_key:
            self._in_key = not _KEY_END.search(line)
            return ""
        if _KEY_BEGIN.search(line) and not _KEY_END.search(line):
            self._in_key = True
        return text(line)


def values(document: Any) -> Any:  # noqa: ANN401 - JSON
    """Every string of a document, and whole strings whose key names them as secret."""
    if isinstance(document, str):
        return text(document)
    if isinstance(document, dict):
        return {
            key: REMOVED if isinstance(each, str) and _NAMES_A_SECRET.search(str(key)) else values(each)
            for key, each in document.items()
        }
    return [values(each) for each in document] if isinstance(document, list) else document


def kept(value: Any, form: Any) -> Any:  # noqa: ANN401 - JSON
    """What a form names: of a mapping these fields if they hold something, of a list each, or what a function makes."""
    if isinstance(form, list):
        return [kept(each, form[0]) for each in value]
    if not isinstance(form, dict):
        return form(value)
    held = {name: value.get(name) for name in form}
    found = {name: kept(each, form[name]) for name, each in held.items() if each not in (None, {}, [])}
    return {name: each for name, each in found.items() if each not in (None, {}, [])}


def _whole(*names: str) -> dict[str, Form]:
    return dict.fromkeys(names, _as_it_is)


def _as_it_is(value: Any) -> Any:  # noqa: ANN401 - JSON
    return value


def _arguments(words: Sequence[str]) -> list[str]:
    return [_argument(str(word)) for word in words]


def _argument(word: str) -> str:
    name, equals, _ = word.partition("=")
    if word in _COMMANDS or name.removeprefix("--") in _FLAGS:
        return text(word)
    return f"{name}={REMOVED}" if equals and name.startswith("--") else REMOVED


def _condition(condition: Json) -> Json:
    said = ("message",) if condition.get("type") == "PodScheduled" else ()
    return dict(kept(condition, _whole("type", "status", "reason", *said)))


_OWN_CONTAINER = {
    **_whole("name", "image", "imagePullPolicy", "ports", "resources", "securityContext", "volumeMounts"),
    **_whole("restartPolicy"),
    "args": _arguments,
    "env": [{"name": _as_it_is, "value": lambda _: REMOVED}],
}
"""Of agent, extender and kube-scheduler. Probes may have headers and commands, so they are left out."""
_OWN_SPEC = {
    **_whole("nodeName", "nodeSelector", "tolerations", "affinity", "serviceAccountName", "priorityClassName"),
    **_whole("hostPID", "hostNetwork", "securityContext", "runtimeClassName", "topologySpreadConstraints", "dnsPolicy"),
    "initContainers": [_OWN_CONTAINER],
    "containers": [_OWN_CONTAINER],
    "volumes": [_whole("name", "hostPath", "emptyDir")],
}
"""Volumes by their kinds and paths of the host: what a volume holds is not looked at."""
_TENANT_CONTAINER = {"name": _as_it_is, "resources": _whole("limits", "requests")}
_STATE = _whole("reason", "exitCode", "signal", "startedAt", "finishedAt")
_TENANT_STATUS = {
    **_whole("name", "ready", "restartCount"),
    "state": dict.fromkeys(("waiting", "running", "terminated"), _STATE),
}


class Forms(msgspec.Struct, frozen=True):
    """What is kept of each kind of object, in a cluster with this domain of vcuda."""

    domain: str

    @property
    def _metadata(self) -> dict[str, Form]:
        named = _whole("name", "namespace", "uid", "generation", "creationTimestamp", "deletionTimestamp")
        return {**named, "annotations": self._annotations}

    def _annotations(self, found: Mapping[str, str]) -> dict[str, str]:
        """They are shown where they are vcuda's own; of the others only the names, also under its domain."""
        own = tuple(f"{self.domain}/{beginning}" for beginning in ("vcuda-", "predicate-", "gpu-assigned"))
        shown = {name for name in found if name.startswith(own) or name in _KEPT_ANNOTATIONS}
        return {name: value if name in shown else REMOVED for name, value in found.items()}

    def _labels(self, found: Mapping[str, str]) -> dict[str, str]:
        named = (f"{self.domain}/", "kubernetes.io/", "node.kubernetes.io/", "nvidia.com/gpu", "feature.node.")
        return {name: value for name, value in found.items() if name.startswith(named) or "nvidia" in name}

    @property
    def own_pod(self) -> dict[str, Form]:
        return {"metadata": self._metadata, "spec": _OWN_SPEC, **_whole("status")}

    @property
    def controller(self) -> dict[str, Form]:
        """A DaemonSet or a Deployment."""
        spec = _whole("replicas", "strategy", "updateStrategy", "revisionHistoryLimit", "selector")
        return {**self.own_pod, "spec": {**spec, "template": {"metadata": self._metadata, "spec": _OWN_SPEC}}}

    @property
    def tenant_pod(self) -> dict[str, Form]:
        """What placement needs: no environment, arguments, images, volumes or messages of its programs."""
        spec = _whole("nodeName", "schedulerName", "priority", "priorityClassName", "runtimeClassName")
        spec |= {key: [_TENANT_CONTAINER] for key in ("initContainers", "containers")}
        status = _whole("phase", "reason", "nominatedNodeName") | {"conditions": [_condition]}
        status |= {key: [_TENANT_STATUS] for key in ("initContainerStatuses", "containerStatuses")}
        return {"metadata": self._metadata, "spec": spec, "status": status}

    @property
    def node(self) -> dict[str, Form]:
        return {
            "metadata": {**self._metadata, "labels": self._labels},
            "spec": _whole("unschedulable", "taints"),
            "status": _whole("allocatable", "capacity", "conditions", "nodeInfo"),
        }

    @property
    def lease(self) -> dict[str, Form]:
        return {"metadata": self._metadata, **_whole("spec")}

    @property
    def webhooks(self) -> dict[str, Form]:
        """The caBundle is public; a key in it is removed as everywhere."""
        return {"metadata": self._metadata, **_whole("webhooks")}


EVENT = {
    "metadata": _whole("name", "namespace", "creationTimestamp"),
    **_whole("involvedObject", "type", "reason", "message", "count", "firstTimestamp", "lastTimestamp", "source"),
}


FOLDER = "vcuda-bundle"
_IN_MEMORY = 4 << 20
Write = Callable[[str], None]


class Archive:
    """`add` once for each member; `unread` names what is missing."""

    def __init__(self, file: IO[bytes], *, at: float) -> None:
        self._tar = tarfile.open(fileobj=file, mode="w|gz")  # noqa: SIM115 - closed by `close`
        self._at = at
        self._members: list[dict[str, Any]] = []
        self._unread: list[dict[str, str]] = []

    @contextmanager
    def lines(self, name: str) -> Iterator[Write]:
        """What the block writes, line by line; nothing of it where the block raises."""
        cleaner = Lines()
        with SpooledTemporaryFile(max_size=_IN_MEMORY) as spool:

            def write(text: str) -> None:
                for line in text.splitlines():
                    spool.write(f"{cleaner.clean(line)}\n".encode(errors="replace"))

            yield write
            self._add(name, spool)

    @contextmanager
    def documents(self, name: str) -> Iterator[Callable[[object], None]]:
        """One JSON document a line."""
        with SpooledTemporaryFile(max_size=_IN_MEMORY) as spool:

            def write(each: object) -> None:
                spool.write(json.dumps(values(each)).encode() + b"\n")

            yield write
            self._add(name, spool)

    def document(self, name: str, document: object) -> None:
        with SpooledTemporaryFile(max_size=_IN_MEMORY) as spool:
            spool.write(json.dumps(values(document), indent=2).encode() + b"\n")
            self._add(name, spool)

    def unread(self, name: str, error: VcudaError) -> None:
        self._unread.append({"name": name, "why": text(error.message)})

    @property
    def missing(self) -> int:
        return len(self._unread)

    def close(self, **about: str) -> None:
        self.document("index.json", {**about, "files": self._members, "notRead": self._unread})
        self._tar.close()

    def _add(self, name: str, spool: IO[bytes]) -> None:
        entry = tarfile.TarInfo(f"{FOLDER}/{name}")
        entry.size, entry.mtime, entry.mode = spool.tell(), int(self._at), 0o600
        spool.seek(0)
        self._tar.addfile(entry, spool)
        self._members.append({"name": name, "bytes": entry.size})


@contextmanager
def created(path: Path) -> Iterator[Archive]:
    """ConfigError if the file is there already or cannot be written; nothing is left of one that is not complete."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"{path} cannot be made: {error.strerror}; name another file with --file") from None
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield Archive(file, at=time.time())
    except BaseException as error:
        with suppress(OSError):
            path.unlink()
        if isinstance(error, OSError):
            raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
        raise
