"""Keeps the claim templates to which the webhook refers pods (`--translate-to-claims`).

In: pods with the webhook's label, templates with the same label. Out: a template for each size that a pod names, in the
pod's namespace; Kubernetes makes the claim from it, and the pod owns the claim. A template is made when its pod exists,
never for a pod that was refused. One that no pod has named for an hour, or a minute where its namespace has many, is
deleted; if a pod names it again, it is made again. What failed is said once, and tried again after a wait of its own,
which doubles.

Invariants: a template says what its name says, and a pod that names another one, or changed its annotations, gets none.
A tenant who creates pods with this label, many and large ones, delays no other namespace: a pod is read once for
each change of what it asks, one of each namespace at a time, and the loop's other work comes between; a pod has at most
one template for each container, and a namespace `MOST_OF_A_NAMESPACE`; a namespace that refuses a template, or does not
answer, waits alone.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice

import msgspec
import structlog

from deviceplugin.backoff import Backoff
from deviceplugin.errors import ParseError, RequestError, VcudaError
from deviceplugin.kube.cluster_client import ClusterClient
from deviceplugin.kube.collection import EventKind, ObjectRef
from deviceplugin.kube.reflector import Reflector, StoreChange
from deviceplugin.kube.resource_claims import ClaimingPod, claiming_pods, kept_templates
from deviceplugin.kube.transport import TokenBucket
from deviceplugin.model.allocation import PodRef
from deviceplugin.model.annotation_names import annotation_names
from deviceplugin.model.claims import MOST_TEMPLATES, ClaimNames, NamedTemplates, claim_label
from deviceplugin.model.pod_request import require_short
from deviceplugin.model.preferences import parse_preferences
from deviceplugin.model.units import ResourceNames

log = structlog.get_logger("vcuda.claims")
MOST_OF_A_NAMESPACE = 256
_MANY = 64
KEEP_S = 3600.0
_KEEP_OF_MANY_S = 60.0
_AGAIN_S = 5.0
_MOST_AGAIN_S = 300.0
_WRITES_A_TURN = 16
_SAID_A_TURN = 64
_SLICE_S = 0.002
WRONG, TOO_MANY, NO_ROOM, NOT_WRITTEN = "wrong_name", "too_many_names", "namespace_full", "write_failed"
REFUSALS = (WRONG, TOO_MANY, NO_ROOM, NOT_WRITTEN)
Refused = Callable[[PodRef, str], None]


class _Try(msgspec.Struct):
    """A template was made, or could not be; until it is seen the next try is due `at`."""

    waits: Backoff
    at: float = 0.0
    has_failed: bool = False


class _NamespacePart(msgspec.Struct):
    """What one namespace has and waits for. Pods are UIDs, templates are names."""

    namespace: str
    unread: dict[str, None] = msgspec.field(default_factory=dict)
    crowded_out: dict[str, None] = msgspec.field(default_factory=dict)
    namers: dict[str, set[str]] = msgspec.field(default_factory=dict)
    there: dict[str, ObjectRef] = msgspec.field(default_factory=dict)
    missing: dict[str, None] = msgspec.field(default_factory=dict)
    unnamed: dict[str, float] = msgspec.field(default_factory=dict)  # since when no pod names it, in this order
    tries: dict[str, _Try] = msgspec.field(default_factory=dict)
    is_writing: bool = False
    cannot_delete: bool = False

    @property
    def room(self) -> int:
        return MOST_OF_A_NAMESPACE - len(self.there) - len(self.missing)

    @property
    def is_empty(self) -> bool:
        return not (self.unread or self.crowded_out or self.namers or self.there or self.is_writing)

    def name(self, pod: str, template: str) -> bool:
        """The pod rightly names it; whether there is room for it."""
        if template not in self.namers:
            if template not in self.there:
                if self.room <= 0:
                    return False
                self.missing[template] = None
            self.unnamed.pop(template, None)
        self.namers.setdefault(template, set()).add(pod)
        return True

    def unname(self, pod: str, template: str, now: float) -> None:
        self.namers[template].discard(pod)
        if self.namers[template]:
            return
        del self.namers[template]
        if template in self.there:
            self.unnamed[template] = now
        else:
            self._forget(template)

    def put(self, template: ObjectRef, now: float) -> None:
        self.there[template.name] = template
        self.missing.pop(template.name, None)
        self.tries.pop(template.name, None)  # what failed before was of another state
        if template.name not in self.namers:
            self.unnamed.setdefault(template.name, now)

    def drop(self, template: str) -> None:
        del self.there[template]
        self.unnamed.pop(template, None)
        self._forget(template)
        if template in self.namers:
            self.missing[template] = None

    def _forget(self, template: str) -> None:
        """There is room for another one: the pod that has waited longest is read again."""
        self.missing.pop(template, None)
        self.tries.pop(template, None)
        if self.room > 0 and (waits := next(iter(self.crowded_out), None)) is not None:
            del self.crowded_out[waits]
            self.unread[waits] = None

    def due(self, now: float, keep_s: float) -> Iterator[str]:
        """Templates to make, and then those to delete."""
        for each in self.missing:
            if (tried := self.tries.get(each)) is None or tried.at <= now:
                yield each
        keep_s = min(keep_s, _KEEP_OF_MANY_S) if len(self.there) > _MANY else keep_s
        for each, since in self.unnamed.items():
            if now - since <= keep_s:
                return
            yield each


class ClaimTemplates:
    """`run` until it is cancelled. Every replica reads the pods; only the leading one writes.

    `refused` hears of each pod that gets no template, and why; the keys of `refusals` are `REFUSALS`. `writes` limits
    the rate of all templates together, so that the Bindings of other pods have the rest of the client's.
    """

    def __init__(
        self,
        client: ClusterClient,
        names: ResourceNames,
        *,
        leads: Callable[[], bool],
        refused: Refused,
        writes: TokenBucket | None = None,
        keep_s: float = KEEP_S,
        again_s: float = _AGAIN_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._leads = leads
        self._tell = refused
        self._writes = writes
        self._label = claim_label(names.domain)
        self._names = ClaimNames(names.domain)
        self._annotations = annotation_names(names.domain)
        self._keep_s = keep_s
        self._again_s = again_s
        self._clock = clock
        self._pods: Reflector[str, ClaimingPod] = Reflector(client, claiming_pods(names.domain))
        self._templates: Reflector[tuple[str, str], ObjectRef] = Reflector(client, kept_templates(names.domain))
        self._parts: dict[str, _NamespacePart] = {}
        self._stirred: dict[str, None] = {}
        self._due = asyncio.Event()
        self._look_at = 0.0
        self._led = False
        self._named: dict[str, tuple[str, ...]] = {}
        self._unsaid: dict[tuple[str, str], tuple[PodRef, str]] = {}
        self._said: set[tuple[str, str]] = set()
        self.refusals = Counter(dict.fromkeys(REFUSALS, 0))
        self._pods.subscribe(self._pod_changed)
        self._templates.subscribe(self._template_changed)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._pods.run())
            group.create_task(self._templates.run())
            await self._pods.synced.wait()
            await self._templates.synced.wait()
            while True:
                await self._turn(group)
                while self._stirred:
                    await self._turn(group)
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(self._look_at):
                        await self._due.wait()
                self._due.clear()

    def unreadable(self) -> list[tuple[tuple[str], int]]:
        """How many templates cannot be read, as rows of a metric; pods count in the scheduler's own watch."""
        return [(("resourceclaimtemplates",), self._templates.unreadable)]

    async def _turn(self, group: asyncio.TaskGroup) -> None:
        """Reads a pod of each namespace in which something happened, and begins to write what is due there."""
        leads = self._leads()
        self._look_everywhere(leads=leads)
        if leads:
            self._say()
        for namespace in tuple(self._stirred):
            part = self._parts[namespace]
            if part.unread:
                await self._read_next(part)
            if not part.unread:
                del self._stirred[namespace]
            if leads and not part.is_writing and next(part.due(self._clock(), self._keep_s), None):
                part.is_writing = True
                group.create_task(self._write_all(part), name=f"templates in {namespace}")
            elif part.is_empty:
                del self._parts[namespace]

    def _look_everywhere(self, *, leads: bool) -> None:
        """Once in `again_s`, however much happens meanwhile, and when this replica begins to lead."""
        now = asyncio.get_running_loop().time()
        if now >= self._look_at or (leads and not self._led):
            self._stirred |= dict.fromkeys(self._parts)
            self._look_at = now + self._again_s
        self._led = leads

    async def _read_next(self, part: _NamespacePart) -> None:
        """Then others have their turn: at most a third of the loop's time is taken, however fast pods change."""
        began, uid = time.perf_counter(), next(iter(part.unread))
        del part.unread[uid]
        if (pod := self._pods.items.get(uid)) is not None:
            self._read(part, pod)
        worked = time.perf_counter() - began
        await asyncio.sleep(2 * worked if worked > _SLICE_S else 0)

    def _read(self, part: _NamespacePart, pod: ClaimingPod) -> None:
        now, templates = self._clock(), self._rightly_named(pod)
        for each in self._named.get(pod.uid, ()):
            if each not in templates:
                part.unname(pod.uid, each, now)
        named = tuple(each for each in templates if part.name(pod.uid, each))
        self._named[pod.uid] = named
        if len(named) < len(templates):
            part.crowded_out[pod.uid] = None
            sentence = (
                f"namespace {pod.namespace} has {MOST_OF_A_NAMESPACE} claim templates, the most that vcuda keeps for "
                "one; the pod is Pending until one is deleted, a minute after the last pod that named it"
            )
            self._refuse(pod, NO_ROOM, sentence)

    def _rightly_named(self, pod: ClaimingPod) -> tuple[str, ...]:
        if pod.named > pod.most:
            sentence = (
                f"the pod names {pod.named} claim templates of vcuda and may name {pod.most}, one for each container "
                f"and {MOST_TEMPLATES} in all; let the webhook name them"
            )
            self._refuse(pod, TOO_MANY, sentence)
            return ()
        found = []
        try:
            templates = self._templates_of(pod)
        except (ParseError, RequestError) as error:
            self._refuse(pod, WRONG, error.message)
            return ()
        for each in pod.templates:
            try:
                templates.spec(templates.size(each))
                found.append(each)
            except (ParseError, RequestError) as error:
                self._refuse(pod, WRONG, error.message)
        return tuple(found)

    def _templates_of(self, pod: ClaimingPod) -> NamedTemplates:
        require_short(pod.unread_bytes)
        return NamedTemplates(parse_preferences(pod.annotations, self._annotations).gpus, self._names)

    def _refuse(self, pod: ClaimingPod, reason: str, why: str) -> None:
        """Said once of each pod, by the replica that leads or will."""
        if (pod.uid, reason) not in self._said:
            self._unsaid.setdefault((pod.uid, reason), (pod.ref, why))

    def _say(self) -> None:
        for key in tuple(islice(self._unsaid, _SAID_A_TURN)):
            pod, why = self._unsaid.pop(key)
            self._said.add(key)
            self.refusals[key[1]] += 1
            log.warning("claim_template_refused", pod=str(pod), error=why)
            self._tell(pod, why)

    async def _write_all(self, part: _NamespacePart) -> None:
        """Some of what is due, one after the other. Errors are logged, never raised."""
        try:
            for each in tuple(islice(part.due(self._clock(), self._keep_s), _WRITES_A_TURN)):
                if self._writes is not None:
                    await self._writes.take()
                if self._leads():
                    await (self._delete(part, part.there[each]) if each in part.there else self._make(part, each))
        finally:
            part.is_writing = False
            self._stir(part.namespace)

    async def _make(self, part: _NamespacePart, template: str) -> None:
        pod = next((self._pods.items.get(each) for each in part.namers.get(template, ())), None)
        if pod is None:
            return  # nobody names it any more
        tried = part.tries.setdefault(template, _Try(Backoff(first=self._again_s, most=_MOST_AGAIN_S)))
        wait = tried.waits.next()
        tried.at = self._clock() + wait
        try:
            templates = self._templates_of(pod)
            spec = templates.spec(templates.size(template))
        except (ParseError, RequestError):
            return  # the pod has changed, and is read again
        try:
            await self._client.create_claim_template((part.namespace, template), self._label, spec)
            log.info("claim_template_created", namespace=part.namespace, template=template)
        except VcudaError as error:
            tried.at = self._clock() + wait
            if not tried.has_failed:
                tried.has_failed = True
                self._say_failed(part, template, error)

    async def _delete(self, part: _NamespacePart, template: ObjectRef) -> None:
        """One that cannot be deleted is tried again when it has been kept as long once more."""
        if template.name in part.namers:
            return
        del part.unnamed[template.name]
        part.unnamed[template.name] = self._clock()
        try:
            await self._client.delete_claim_template(template)
            part.cannot_delete = False
            log.info("claim_template_deleted", namespace=part.namespace, template=template.name)
        except VcudaError as error:
            if not part.cannot_delete:
                self._say_failed(part, template.name, error)
            part.cannot_delete = True

    def _say_failed(self, part: _NamespacePart, template: str, error: VcudaError) -> None:
        self.refusals[NOT_WRITTEN] += 1
        log.warning("claim_template_failed", namespace=part.namespace, template=template, error=error.message)

    def _template_changed(self, change: StoreChange[ObjectRef]) -> None:
        part = self._stir(change.item.namespace)
        if change.kind is EventKind.DELETED:
            part.drop(change.item.name)
        else:
            part.put(change.item, self._clock())

    def _pod_changed(self, change: StoreChange[ClaimingPod]) -> None:
        pod = change.item
        part = self._stir(pod.namespace)
        part.crowded_out.pop(pod.uid, None)
        if change.kind is not EventKind.DELETED:
            part.unread[pod.uid] = None
            return
        part.unread.pop(pod.uid, None)
        for each in self._named.pop(pod.uid, ()):
            part.unname(pod.uid, each, self._clock())
        for key in ((pod.uid, reason) for reason in REFUSALS):
            self._unsaid.pop(key, None)
            self._said.discard(key)

    def _stir(self, namespace: str) -> _NamespacePart:
        """Something happened there."""
        self._stirred[namespace] = None
        self._due.set()
        if (part := self._parts.get(namespace)) is None:
            part = self._parts[namespace] = _NamespacePart(namespace)
        return part
