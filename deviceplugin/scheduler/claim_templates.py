"""Keeps the claim templates to which the webhook refers pods (`--translate-to-claims`).

In: pods with the webhook's label, templates with the same label. Out: a template for each size that a pod names, in the
pod's namespace; Kubernetes makes the claim from it, and the pod owns the claim. A template is made when its pod exists,
never for a pod that was refused. One that no pod has named for an hour is deleted; if a pod names it again, it is made
again. Invariants: a template says what its name says, and a pod that names another one, or changed its annotations,
gets none; a namespace that refuses a template, or does not answer, keeps no other namespace waiting. What failed is
said once, and tried again after a wait of its own, which doubles.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from deviceplugin.backoff import Backoff
from deviceplugin.errors import ParseError, RequestError, VcudaError
from deviceplugin.kube.claim_templates import (
    ClaimingPod,
    KeptTemplate,
    TemplateKey,
    claiming_pods,
    kept_templates,
)
from deviceplugin.kube.cluster_client import ClusterClient
from deviceplugin.kube.reflector import Reflector, StoreChange
from deviceplugin.model.annotation_names import annotation_names
from deviceplugin.model.claim_template import claim_label, read_template_name, template_spec
from deviceplugin.model.claims import ClaimNames
from deviceplugin.model.preferences import parse_preferences
from deviceplugin.model.units import ResourceNames

log = structlog.get_logger("vcuda.claims")
_AGAIN_S = 5.0
_MOST_AGAIN_S = 300.0
KEEP_S = 3600.0


@dataclass(frozen=True, slots=True)
class _DueWrite:
    """A template to make from `spec`, or one that exists to delete."""

    key: TemplateKey
    spec: dict[str, object] | None = None
    template: KeptTemplate | None = None


@dataclass(slots=True)
class _WriteFailure:
    """Of the last try of a write; the next one is due `at`."""

    waits: Backoff
    at: float


class ClaimTemplates:
    """`run` until it is cancelled. Only the leading replica writes."""

    def __init__(
        self,
        client: ClusterClient,
        names: ResourceNames,
        *,
        leads: Callable[[], bool],
        keep_s: float = KEEP_S,
        again_s: float = _AGAIN_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._leads = leads
        self._label = claim_label(names.domain)
        self._names = ClaimNames(names.domain)
        self._annotations = annotation_names(names.domain)
        self._keep_s = keep_s
        self._again_s = again_s
        self._clock = clock
        self._pods: Reflector[str, ClaimingPod] = Reflector(client, claiming_pods(self._label))
        self._templates: Reflector[TemplateKey, KeptTemplate] = Reflector(client, kept_templates(self._label))
        self._due = asyncio.Event()
        self._last_named: dict[TemplateKey, float] = {}
        self._refused: set[str] = set()
        self._failed: dict[TemplateKey, _WriteFailure] = {}
        self._writing: set[str] = set()
        self._pods.subscribe(self._changed)
        self._templates.subscribe(self._template_changed)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._pods.run())
            group.create_task(self._templates.run())
            await self._pods.synced.wait()
            await self._templates.synced.wait()
            while True:
                self._due.clear()
                if self._leads():
                    for namespace, writes in self._due_writes().items():
                        self._writing.add(namespace)
                        group.create_task(self._write_all(namespace, writes), name=f"templates in {namespace}")
                try:
                    async with asyncio.timeout(self._again_s):
                        await self._due.wait()
                except TimeoutError:
                    continue

    def _due_writes(self) -> dict[str, list[_DueWrite]]:
        """By namespace, without those in which the last ones are still written."""
        wanted, now, there = self._wanted(), self._clock(), self._templates.items
        self._last_named |= dict.fromkeys(wanted, now)
        due = {key: _DueWrite(key, spec=spec) for key, spec in wanted.items() if key not in there}
        for key, template in there.items():
            if now - self._last_named.setdefault(key, now) > self._keep_s:
                due[key] = _DueWrite(key, template=template)
        self._last_named = {key: at for key, at in self._last_named.items() if key in there}
        self._failed = {key: failure for key, failure in self._failed.items() if key in due}
        found: dict[str, list[_DueWrite]] = defaultdict(list)
        for key, write in due.items():
            if key[0] not in self._writing and (key not in self._failed or self._failed[key].at <= now):
                found[key[0]].append(write)
        return found

    async def _write_all(self, namespace: str, writes: list[_DueWrite]) -> None:
        """Errors are logged, never raised."""
        try:
            for each in writes:
                if self._leads():
                    await self._write(each)
        finally:
            self._writing.discard(namespace)

    async def _write(self, due: _DueWrite) -> None:
        try:
            if due.spec is not None:
                await self._client.create_claim_template(due.key, self._label, due.spec)
                log.info("claim_template_created", namespace=due.key[0], template=due.key[1])
            elif due.template is not None:
                await self._client.delete_claim_template(due.template)
                log.info("claim_template_deleted", namespace=due.key[0], template=due.key[1])
        except VcudaError as error:
            failure = self._failed.get(due.key)
            if failure is None:
                failure = _WriteFailure(Backoff(first=self._again_s, most=_MOST_AGAIN_S), 0.0)
                log.warning("claim_template_failed", namespace=due.key[0], template=due.key[1], error=error.message)
                self._failed[due.key] = failure
            failure.at = self._clock() + failure.waits.next()

    def _wanted(self) -> dict[TemplateKey, dict[str, object]]:
        found: dict[TemplateKey, dict[str, object]] = {}
        for pod in self._pods.items.values():
            for name in pod.templates:
                key = (pod.namespace, name)
                if name.startswith("vcuda-") and key not in found and (spec := self._spec(pod, name)) is not None:
                    found[key] = spec
        return found

    def _spec(self, pod: ClaimingPod, name: str) -> dict[str, object] | None:
        try:
            wanted = parse_preferences(pod.annotations, self._annotations).gpus
            return template_spec(read_template_name(name, wanted), wanted, self._names)
        except (ParseError, RequestError) as error:
            if pod.uid not in self._refused:
                self._refused.add(pod.uid)
                log.warning("claim_template_refused", pod=f"{pod.namespace}/{pod.name}", error=error.message)
            return None

    def _template_changed(self, change: StoreChange[KeptTemplate]) -> None:
        """What failed before was of another state."""
        self._failed.pop(change.item.key, None)

    def _changed(self, change: StoreChange[ClaimingPod]) -> None:
        self._refused &= self._pods.items.keys()
        self._due.set()
