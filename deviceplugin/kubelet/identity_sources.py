"""The three identity sources of `--identity`: what kubelet or the API server shows of the pods of this node.

In: kubelet's `GET /pods`, its PodResources socket, the API server's watch. Out: the containers that a call may be for,
by the rules of `identity_rule`. Nothing here has a time limit: `Identity` gives each source its time.

`PodsSource` asks kubelet's `GET /pods`. It is exact: kubelet adds a pod to this list before it admits it, and the next
pod only afterwards (verified on kubelet 1.36). `PodResourcesSource` compares the API server's watch with kubelet's
PodResources; it is exact for app and restartable init containers, but for pods that kubelet has refused: before 1.36 it
shows them too. `PendingSource` takes the pending pods of the API server in the order of the scheduler's predictions. It
is a guess, as in gpu-manager: kubelet may admit pods in another order.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog

from deviceplugin.errors import KubeError, KubeletError, ParseError
from deviceplugin.kubelet.identity_rule import Pairs, Question, candidates, readmitted, unread_pod
from deviceplugin.kubelet.podresources import PodDevices, PodResources
from deviceplugin.ledger.grant import Source
from deviceplugin.model.allocation import ContainerRole
from deviceplugin.model.annotation_names import annotation_names
from deviceplugin.model.pod import Pod, PodContainer
from deviceplugin.model.preferences import GpuPolicy
from deviceplugin.model.units import ResourceNames

log = structlog.get_logger("vcuda.kubelet")
_FETCH_S = 2.0
_MAX_GETS = 8  # of the burst of 10 that all PodResources clients of the node share


class PodsSource:
    """Asks kubelet for all pods at each question: about 3 ms, and never stale."""

    source = Source.PODS
    exact = True

    def __init__(self, fetch: Callable[[], Awaitable[Sequence[Pod]]]) -> None:
        self._fetch = fetch

    async def candidates(self, question: Question) -> Pairs:
        pods = await self._fetch()
        return candidates(pods, question) or readmitted(pods, question)

    async def narrow(self, question: Question, pairs: Sequence[tuple[Pod, PodContainer]]) -> Pairs:
        wanted = {pod.ref.uid for pod, _ in await self.candidates(question)}
        return [pair for pair in pairs if pair[0].ref.uid in wanted]


class PodResourcesSource:
    """`known` are the watched pods; `fetch` reads one pod from the API server if the watch lags behind kubelet.

    PodResources shows a pod from the start of its admission. A refused pod disappears from `List` since kubelet 1.34
    and from `Get` since 1.36; before, it counts until the watch shows that it has failed, and PreStartContainer gives
    what it got to the right container. Plain init containers are not shown: such a pod counts as long as none of its
    app containers has the resource.
    """

    source = Source.PODRESOURCES
    exact = True

    def __init__(
        self,
        client: PodResources,
        *,
        known: Callable[[], Sequence[Pod]],
        fetch: Callable[[str, str], Awaitable[Pod | None]],
        names: ResourceNames,
    ) -> None:
        self._client = client
        self._known = known
        self._fetch = fetch
        self._names = names

    async def candidates(self, question: Question) -> Pairs:
        known = self._known()
        fitting = candidates(known, question)
        if found := await self.narrow(question, sorted(fitting, key=_bind_order)):
            return found
        if found := await self._unwatched(question, known):
            return found
        return await self.narrow(question, readmitted(known, question))

    async def narrow(self, question: Question, pairs: Sequence[tuple[Pod, PodContainer]]) -> Pairs:
        if not pairs:
            return []
        views = await self._views([pod for pod, _ in pairs])
        name = self._names.of(question.resource)
        return [pair for pair in pairs if (view := views.get(_name(pair[0]))) and _lacks(view, pair, name)]

    async def _views(self, pods: Sequence[Pod]) -> dict[tuple[str, str], PodDevices]:
        if len(pods) <= _MAX_GETS:
            try:
                got = [await self._client.get(pod.ref.namespace, pod.ref.name) for pod in pods]
            except KubeletError:
                pass
            else:
                return {(view.namespace, view.name): view for view in got if view is not None}
        return {(view.namespace, view.name): view for view in await self._client.list()}

    async def _unwatched(self, question: Question, known: Sequence[Pod]) -> Pairs:
        """Pods that kubelet has and the watch does not show yet.

        If the API server does not answer, what PodResources shows of them is all there is: static pods start without
        an API server too.
        """
        watched = {_name(pod) for pod in known}
        views = [view for view in await self._client.list() if (view.namespace, view.name) not in watched]
        try:
            async with asyncio.timeout(_FETCH_S):
                fetched = [await self._fetch(view.namespace, view.name) for view in views]
        except (KubeError, TimeoutError) as error:
            log.warning("unread_pods", pods=[f"{view.namespace}/{view.name}" for view in views], error=str(error))
            return [pair for view in views for pair in self._unread(view, question)]
        return await self.narrow(question, candidates([pod for pod in fetched if pod is not None], question))

    def _unread(self, view: PodDevices, question: Question) -> Pairs:
        """Its containers that lack the resource, on the emptiest GPU: the other count may be anything.

        A container that has the other resource already comes alone, because kubelet asks for both in a row.
        """
        names, wanted = self._names, question.resource
        annotations = {annotation_names(names.domain).gpu_policy: GpuPolicy.SPREAD.value}
        lacking = [each for each in view.containers if view.lacks(each, names.of(wanted))]
        half = [each for each in lacking if not view.lacks(each, names.of(wanted.other))]
        pods = [unread_pod(view.namespace, view.name, each, question, annotations) for each in half or lacking]
        return [(pod, pod.containers[0]) for pod in pods]


class PendingSource:
    """`predicate_time` reads the scheduler's annotation of a pod, in nanoseconds; None if the pod has none.

    The guess is marked as one; PreStartContainer proves or repairs it.
    """

    source = Source.APISERVER
    exact = False

    def __init__(self, known: Callable[[], Sequence[Pod]], *, predicate_time: Callable[[Pod], int | None]) -> None:
        self._known = known
        self._predicate_time = predicate_time

    async def candidates(self, question: Question) -> Pairs:
        known = self._known()
        found = candidates(known, question.ignoring_records())
        if question.guess is not None:
            # The previous guess does not fit, so the container that wants both counts was meant.
            found = [pair for pair in found if question.completes(pair[1])] or found
        if not found:
            found = self._readmitted(question, known)
        return sorted(found, key=lambda pair: self._order(pair[0]))

    def _readmitted(self, question: Question, known: Sequence[Pod]) -> Pairs:
        """Kubelet can only have forgotten what is proved or was paired in the previous call, never another guess."""
        paired = question.guess.owner.key if question.guess is not None else None
        return [
            pair
            for pair in readmitted(known, question)
            if question.proved(pair[1].ref.key) or pair[1].ref.key == paired
        ]

    async def narrow(self, question: Question, pairs: Sequence[tuple[Pod, PodContainer]]) -> Pairs:
        return list(pairs)

    def _order(self, pod: Pod) -> tuple[float, str]:
        try:
            predicted = self._predicate_time(pod)
        except ParseError:
            predicted = None
        return (predicted / 1e9 if predicted is not None else pod.created, pod.ref.name)


def _name(pod: Pod) -> tuple[str, str]:
    return (pod.ref.namespace, pod.ref.name)


def _bind_order(pair: tuple[Pod, PodContainer]) -> tuple[int, float]:
    version = pair[0].resource_version
    return (int(version) if version.isdigit() else 0, pair[0].created)


def _lacks(view: PodDevices, pair: tuple[Pod, PodContainer], resource_name: str) -> bool:
    pod, container = pair
    if container.role is not ContainerRole.INIT:
        return view.lacks(container.ref.name, resource_name)
    apps = (each.ref.name for each in pod.containers if each.role is ContainerRole.APP)
    return all(view.lacks(name, resource_name) for name in apps)
