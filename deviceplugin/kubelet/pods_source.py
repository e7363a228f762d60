"""Identity source 1: kubelet's own list of pods, `GET /pods`, with UIDs, whole specs and init containers.

In: a function that fetches and decodes the list (`kube` owns the credentials). Out: the containers that want what was
asked and have no answer of ours. Exact: kubelet adds a pod to this list before it admits it, and the next one only
afterwards (verified on kubelet 1.36, design 3.2).
"""

from collections.abc import Awaitable, Callable, Sequence

from deviceplugin.kubelet.claims import again, candidates
from deviceplugin.kubelet.identity import Question
from deviceplugin.ledger.grant import Source
from deviceplugin.model.pod import Pod, PodContainer


class PodsSource:
    """Asks kubelet for all pods at each question: about 3 ms, and never stale."""

    source = Source.PODS
    exact = True

    def __init__(self, fetch: Callable[[], Awaitable[Sequence[Pod]]], *, budget_s: float) -> None:
        self._fetch = fetch
        self.budget_s = budget_s

    async def candidates(self, question: Question) -> list[tuple[Pod, PodContainer]]:
        pods = await self._fetch()
        return candidates(pods, question.resource, question.count, question.answered, question.recorded) or again(
            pods, question.resource, question.count, question.recorded
        )

    async def narrow(
        self, question: Question, pairs: Sequence[tuple[Pod, PodContainer]]
    ) -> list[tuple[Pod, PodContainer]]:
        wanted = {pod.ref.uid for pod, _ in await self.candidates(question)}
        return [pair for pair in pairs if pair[0].ref.uid in wanted]
