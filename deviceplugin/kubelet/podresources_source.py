"""Identity source 2: pods known to the API server's watch, held against kubelet's PodResources.

In: the pods of this node as the reflector sees them and the PodResources client. Out: those that kubelet already knows
and has not given the resource to. A pod is there from the start of its admission, and a refused one vanishes. Exact for
app and restartable init containers; a plain init container is not shown, so there the pod counts while none of its
app containers has the resource. Our watch may lag behind kubelet's: then `List` names the pod and `fetch` gets it.
"""

from collections.abc import Awaitable, Callable, Sequence

from deviceplugin.errors import KubeletError
from deviceplugin.kubelet.claims import again, candidates
from deviceplugin.kubelet.identity import Question
from deviceplugin.kubelet.podresources import PodDevices, PodResources
from deviceplugin.ledger.grant import Source
from deviceplugin.model.allocation import ContainerRole
from deviceplugin.model.pod import Pod, PodContainer
from deviceplugin.model.units import ResourceNames

Pairs = list[tuple[Pod, PodContainer]]
_MOST_GETS = 8  # of the burst of 10 that all clients of the node share


class PodResourcesSource:
    """`known` are the pods of our own watch; `fetch` reads one pod from the API server when the watch lags."""

    source = Source.PODRESOURCES
    exact = True

    def __init__(
        self,
        client: PodResources,
        *,
        known: Callable[[], Sequence[Pod]],
        fetch: Callable[[str, str], Awaitable[Pod | None]],
        names: ResourceNames,
        budget_s: float,
    ) -> None:
        self._client = client
        self._known = known
        self._fetch = fetch
        self._names = names
        self.budget_s = budget_s

    async def candidates(self, question: Question) -> Pairs:
        known = self._known()
        fitting = candidates(known, question.resource, question.count, question.answered, question.recorded)
        if found := await self.narrow(question, sorted(fitting, key=_bind_order)):
            return found
        if found := await self._unwatched(question, known):
            return found
        return again(known, question.resource, question.count, question.recorded)

    async def narrow(self, question: Question, pairs: Sequence[tuple[Pod, PodContainer]]) -> Pairs:
        if not pairs:
            return []
        views = await self._views([pod for pod, _ in pairs])
        name = self._names.of(question.resource)
        return [pair for pair in pairs if (view := views.get(_names(pair[0]))) and _lacks(view, pair, name)]

    async def _views(self, pods: Sequence[Pod]) -> dict[tuple[str, str], PodDevices]:
        if len(pods) <= _MOST_GETS:
            try:
                got = [await self._client.get(pod.ref.namespace, pod.ref.name) for pod in pods]
            except KubeletError:
                pass
            else:
                return {(view.namespace, view.name): view for view in got if view is not None}
        return {(view.namespace, view.name): view for view in await self._client.list()}

    async def _unwatched(self, question: Question, known: Sequence[Pod]) -> Pairs:
        watched = {_names(pod) for pod in known}
        shown = [(view.namespace, view.name) for view in await self._client.list()]
        fetched = [await self._fetch(*names) for names in shown if names not in watched]
        pods = [pod for pod in fetched if pod is not None]
        fitting = candidates(pods, question.resource, question.count, question.answered, question.recorded)
        return await self.narrow(question, fitting)


def _names(pod: Pod) -> tuple[str, str]:
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
