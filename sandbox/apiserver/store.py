"""The objects and their history: what etcd and the registry are to the real server.

In: JSON objects. Out: copies of them, each with the version of its last change, and a log of changes for watchers.
Not here: HTTP, and what is special about pods (`pods`). Invariant: one counter numbers every change of every
resource, so a list's version and a watch from it can neither miss nor repeat a change. Single-threaded: the loop that
serves it owns it.
"""

import copy
import datetime as dt
import itertools
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from sandbox.apiserver import pods, validation
from sandbox.apiserver.kinds import KINDS, qualified
from sandbox.apiserver.patch import merge, merge_strategic
from sandbox.apiserver.status import ApiError, JsonObject, conflict, expired, invalid, not_found

Key = tuple[str, str, str]

_IMMUTABLE = ("uid", "name", "namespace", "creationTimestamp")
_ADMIT: dict[str, Callable[[JsonObject, JsonObject | None], None]] = {
    "pods": pods.admit,
    "secrets": validation.admit_secret,
    "leases": validation.admit_lease,
    "resourceclaimtemplates": validation.admit_claim_template,
    "mutatingwebhookconfigurations": validation.admit_webhooks,
    "validatingwebhookconfigurations": validation.admit_webhooks,
}


@dataclass(frozen=True, slots=True)
class Change:
    """One step of history; `after` of a deletion is the last state, at the version of the deletion."""

    version: int
    resource: str
    before: JsonObject | None
    after: JsonObject
    deleted: bool = False

    @property
    def last_seen(self) -> JsonObject:
        """For a watcher whose selector it has left: as it was before, at the version of the change."""
        if self.deleted or self.before is None:
            return self.after
        return merge(self.before, {"metadata": {"resourceVersion": str(self.version)}})


class Store:
    """Create, read, change and delete; every write is seen by all listeners before the call returns."""

    def __init__(self) -> None:
        self.version = 1
        self.oldest = 1
        self._objects: dict[Key, JsonObject] = {}
        self._log: list[Change] = []
        self._listeners: list[Callable[[], None]] = []
        self._names = itertools.count(1)

    def get(self, resource: str, name: str, *, namespace: str = "") -> JsonObject:
        """A copy of the object; ApiError 404 where there is none."""
        return copy.deepcopy(self._current((resource, namespace, name)))

    def objects(self, resource: str, *, namespace: str = "") -> list[JsonObject]:
        """Copies in the order of the real server: by namespace, then name."""
        keys = sorted(key for key in self._objects if key[0] == resource and (not namespace or key[1] == namespace))
        return [copy.deepcopy(self._objects[key]) for key in keys]

    def create(self, resource: str, item: JsonObject, *, namespace: str = "") -> JsonObject:
        """Stores a new object with uid, time and version; 409 where the name is taken."""
        new = copy.deepcopy(item)
        meta = new.setdefault("metadata", {})
        kind = KINDS[resource]
        if kind.namespaced:
            meta["namespace"] = namespace or meta.get("namespace") or "default"
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = f"{meta['generateName']}{next(self._names):05d}"
        if not meta.get("name"):
            raise invalid(kind.word, "", "metadata.name: Required value: name is required")
        key = (resource, meta.get("namespace", ""), meta["name"])
        if key in self._objects:
            raise ApiError(409, f'{qualified(resource)} "{meta["name"]}" already exists', reason="AlreadyExists")
        meta.setdefault("uid", str(uuid.uuid4()))
        meta["creationTimestamp"] = meta.get("creationTimestamp") or timestamp()
        new |= {"apiVersion": kind.api_version, "kind": kind.word}
        validation.check_annotations(kind.word, meta)
        return self._write(key, new)

    def replace(self, resource: str, name: str, item: JsonObject, *, namespace: str = "") -> JsonObject:
        """PUT: the whole object; a version in it is a precondition."""
        key = (resource, namespace, name)
        old, new = self._current(key), copy.deepcopy(item)
        meta, kind = new.get("metadata", {}), KINDS[resource]
        if meta.get("name", name) != name:
            raise ApiError(400, f"the name of the object ({meta['name']}) does not match the name on the URL ({name})")
        if not meta.get("resourceVersion") and not kind.blind_put:
            raise invalid(
                kind.word, name, "metadata.resourceVersion: Invalid value: 0: must be specified for an update"
            )
        _check_preconditions(resource, old, meta)
        new |= {"apiVersion": kind.api_version, "kind": kind.word}
        kept = {field: old["metadata"][field] for field in _IMMUTABLE if field in old["metadata"]}
        new["metadata"] = {**meta, **kept}
        if resource == "pods":
            new["status"] = old.get("status", {})
        validation.check_annotations(kind.word, new["metadata"])
        return self._write(key, new)

    def patch(
        self,
        resource: str,
        name: str,
        change: JsonObject,
        *,
        namespace: str = "",
        status: bool = False,
        strategic: bool = False,
    ) -> JsonObject:
        """Merge patch; uid and version in it are preconditions. Pods: status changes only through `status`."""
        key = (resource, namespace, name)
        old = self._current(key)
        _check_patch(resource, old, change.get("metadata") or {})
        change = {part: value for part, value in change.items() if part not in ("apiVersion", "kind")}
        if status:
            change = {part: change[part] for part in ("metadata", "status") if part in change}
        elif resource == "pods":
            change.pop("status", None)
        new = merge_strategic(old, change) if strategic else merge(old, change)
        new["metadata"] |= {field: old["metadata"][field] for field in _IMMUTABLE if field in old["metadata"]}
        validation.check_annotations(KINDS[resource].word, new["metadata"])
        try:
            return self._write(key, new)
        except ApiError as error:
            if error.code != 400:
                raise
            # What cannot be decoded is a bad request in a POST and an invalid patch here (seen on 1.36).
            raise invalid("", "", f"patch: Invalid value: {error}") from None

    def set_status(self, name: str, change: JsonObject, *, namespace: str = "default") -> JsonObject:
        """What a kubelet does after each step: patch the pod's status."""
        return self.patch("pods", name, {"status": change}, namespace=namespace, status=True)

    def bind(self, name: str, node: str, *, namespace: str = "default", meta: JsonObject | None = None) -> JsonObject:
        """The binding subresource: node and annotations become visible in one write."""
        key = ("pods", namespace, name)
        old = self._current(key)
        _check_preconditions("pods", old, meta or {})
        return self._write(key, pods.bound(old, node, (meta or {}).get("annotations") or {}))

    def delete(
        self,
        resource: str,
        name: str,
        *,
        namespace: str = "",
        grace: int | None = None,
        preconditions: JsonObject | None = None,
    ) -> JsonObject:
        """Deletes, or for a bound pod marks it as deleting; the kubelet's delete with grace 0 is the last one."""
        key = (resource, namespace, name)
        old = self._current(key)
        _check_preconditions(resource, old, preconditions or {})
        if resource != "pods":
            return self._erase(key)
        seconds = pods.grace_seconds(old, grace)
        if seconds and old["metadata"].get("deletionTimestamp"):
            return copy.deepcopy(old)
        marked = self._write(key, pods.deleting(old, seconds, timestamp(seconds)))
        return marked if seconds else self._erase(key)

    def changes(self, resource: str, since: int) -> list[Change]:
        """Every later change, oldest first; ApiError 410 where they are compacted away."""
        if since < self.oldest - 1:
            raise expired(since, self.oldest)
        return [change for change in self._log if change.version > since and change.resource == resource]

    def compact(self) -> None:
        """Forgets the history: only a watch from the present version works."""
        self.version += 1
        self.oldest = self.version + 1
        self._log.clear()

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Calls the listener after each write; returns what ends that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _current(self, key: Key) -> JsonObject:
        if key not in self._objects:
            raise not_found(qualified(key[0]), key[2])
        return self._objects[key]

    def _write(self, key: Key, new: JsonObject) -> JsonObject:
        before = self._objects.get(key)
        if admit := _ADMIT.get(key[0]):
            admit(new, before)
        if before is not None and _without_version(before) == _without_version(new):
            return copy.deepcopy(before)
        self.version += 1
        new["metadata"]["resourceVersion"] = str(self.version)
        self._objects[key] = new
        self._record(Change(self.version, key[0], before, new))
        return copy.deepcopy(new)

    def _erase(self, key: Key) -> JsonObject:
        before = self._objects.pop(key)
        self.version += 1
        last = merge(before, {"metadata": {"resourceVersion": str(self.version)}})
        self._record(Change(self.version, key[0], before, last, deleted=True))
        return last

    def _record(self, change: Change) -> None:
        self._log.append(change)
        for listener in tuple(self._listeners):
            listener()


def timestamp(seconds_from_now: float = 0) -> str:
    moment = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=seconds_from_now)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _check_patch(resource: str, old: JsonObject, wanted: JsonObject) -> None:
    """A patch is no precondition for the real server: another uid is a change of an immutable field (seen on 1.36)."""
    if wanted.get("uid") and wanted["uid"] != old["metadata"]["uid"]:
        why = f'metadata.uid: Invalid value: "{wanted["uid"]}": field is immutable'
        raise invalid(KINDS[resource].word, old["metadata"]["name"], why)
    _check_preconditions(resource, old, wanted)


def _check_preconditions(resource: str, old: JsonObject, wanted: JsonObject) -> None:
    meta = old["metadata"]
    if wanted.get("uid") and wanted["uid"] != meta["uid"]:
        why = f"Precondition failed: UID in precondition: {wanted['uid']}, UID in object meta: {meta['uid']}"
        raise conflict(qualified(resource), meta["name"], why)
    if wanted.get("resourceVersion") and str(wanted["resourceVersion"]) != meta["resourceVersion"]:
        why = "the object has been modified; please apply your changes to the latest version and try again"
        raise conflict(qualified(resource), meta["name"], why)


def _without_version(item: JsonObject) -> JsonObject:
    return item | {"metadata": {**item["metadata"], "resourceVersion": None}}
