"""Keeps the claim templates to which the webhook refers pods (`--translate-to-claims`).

In: pods with the webhook's label, templates with the same label. Out: a template for each size that a pod names, in the
pod's namespace; Kubernetes makes the claim from it, and the pod owns the claim. A template is made when its pod exists,
never for a pod that was refused. One that no pod has named for an hour is deleted; if a pod names it again, it is made
again. Invariant: a template says what its name says. A pod that names another one, or changed its annotations, gets
none.
"""

import asyncio
import time
from collections.abc import Callable

import structlog

from deviceplugin.errors import ParseError, VcudaError
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
KEEP_S = 3600.0


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
        self._pods.subscribe(self._changed)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._pods.run())
            group.create_task(self._templates.run())
            await self._pods.synced.wait()
            await self._templates.synced.wait()
            while True:
                self._due.clear()
                if self._leads():
                    await self.keep()
                try:
                    async with asyncio.timeout(self._again_s):
                        await self._due.wait()
                except TimeoutError:
                    continue

    async def keep(self) -> None:
        """One round; errors are logged, never raised."""
        wanted = self._wanted()
        now = self._clock()
        self._last_named |= dict.fromkeys(wanted, now)
        try:
            for key in wanted.keys() - self._templates.items.keys():
                await self._client.create_claim_template(key, self._label, wanted[key])
                log.info("claim_template_created", namespace=key[0], template=key[1])
            for key, template in tuple(self._templates.items.items()):
                if now - self._last_named.setdefault(key, now) > self._keep_s:
                    await self._client.delete_claim_template(template)
                    log.info("claim_template_deleted", namespace=key[0], template=key[1])
        except VcudaError as error:
            log.warning("claim_templates_failed", error=error.message)
        self._last_named = {key: at for key, at in self._last_named.items() if key in self._templates.items}

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
        except ParseError as error:
            if pod.uid not in self._refused:
                self._refused.add(pod.uid)
                log.warning("claim_template_refused", pod=f"{pod.namespace}/{pod.name}", error=error.message)
            return None

    def _changed(self, change: StoreChange[ClaimingPod]) -> None:
        self._refused &= self._pods.items.keys()
        self._due.set()
