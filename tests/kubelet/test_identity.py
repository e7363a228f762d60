"""From a count to a container: the order of sources, ambiguity, budgets."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deviceplugin.errors import IdentityError, KubeletError
from deviceplugin.kubelet.answers import AnswerReader, AnswerRecords
from deviceplugin.kubelet.identity import IdentifiedContainer, Identity, IdentitySource, Question, candidates
from deviceplugin.kubelet.identity_sources import PendingSource, PodDevices, PodResources, PodResourcesSource
from deviceplugin.ledger.grant import Source
from deviceplugin.model.allocation import OwnerKey, PodUid
from deviceplugin.model.pod import Pod, PodContainer
from deviceplugin.model.units import Resource, ResourceNames
from deviceplugin.structs import replace
from tests.kubelet.makers import grant, pod
from tests.waiting import until

Pairs = list[tuple[Pod, PodContainer]]


def question(guess: PodContainer | None = None) -> Question:
    return Question(
        Resource.CORE,
        20,
        guess=grant(guess, (0, guess.cores, guess.blocks)).allocation if guess else None,
    )


class Scripted:
    """A source that shows pods, fails, or does not answer."""

    def __init__(
        self,
        source: Source,
        *pods: Pod,
        exact: bool = True,
        error: str = "",
        hangs: bool = False,
        takes_s: float = 0,
        sees: str = "",
    ) -> None:
        self.source = source
        self.exact = exact
        self.asked = 0
        self.hangs = hangs
        self.takes_s = takes_s
        self._pods, self._error, self._sees = pods, error, sees

    async def candidates(self, asked: Question) -> Pairs:
        self.asked += 1
        if self.hangs:
            await asyncio.sleep(600)
        await asyncio.sleep(self.takes_s)
        if self._error:
            raise KubeletError(self._error)
        return candidates(self._pods, asked, AnswerRecords())

    async def narrow(self, asked: Question, pairs: Sequence[tuple[Pod, PodContainer]]) -> Pairs:
        self.asked += 1
        if self._error:
            raise KubeletError(self._error)
        return [pair for pair in pairs if pair[0].ref.name in self._sees.split()]


def asking(sources: Sequence[IdentitySource], **options: Any) -> Identity:
    return Identity(sources, **({"budget_s": 0.02, "patience_s": 0.3} | options))


A, B = (pod(name, ("c", 20, 4), seen_by_kubelet=seen) for name, seen in (("a", 1.0), ("b", 2.0)))


async def test_the_first_source_that_shows_one_decides() -> None:
    first, second = Scripted(Source.PODS, A), Scripted(Source.PODRESOURCES, B)
    found = await asking([first, second]).identify(question())
    assert (found.pod.ref.name, found.source, found.certain) == ("a", Source.PODS, True)
    assert second.asked == 0


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(Scripted(Source.PODS, error="kubelet refuses this agent (403)"), id="refuses"),
        pytest.param(Scripted(Source.PODS, hangs=True), id="hangs"),
        pytest.param(Scripted(Source.PODS), id="shows-nothing"),
    ],
)
async def test_after_a_failed_source_the_next_one_is_asked(first: Scripted) -> None:
    found = await asking([first, Scripted(Source.PODRESOURCES, B)]).identify(question())
    assert (found.pod.ref.name, found.source) == ("b", Source.PODRESOURCES)


async def test_several_candidates_are_narrowed_down_by_the_next_exact_source() -> None:
    identity = asking([Scripted(Source.PODS, A, B), Scripted(Source.PODRESOURCES, sees="a")])
    found = await identity.identify(question())
    assert (found.pod.ref.name, found.certain) == ("a", True)


async def test_what_stays_ambiguous_is_the_pod_that_kubelet_saw_last_and_marked_as_a_guess(
    subtests: pytest.Subtests,
) -> None:
    cases: list[dict[str, str]] = [{"sees": "a b"}, {"sees": ""}, {"error": "rate limit"}]
    for other in cases:
        with subtests.test(other=other):
            identity = asking([Scripted(Source.PODS, A, B), Scripted(Source.PODRESOURCES, **other)])  # type: ignore[arg-type]
            found = await identity.identify(question())
            assert (found.pod.ref.name, found.certain) == ("b", False)


async def test_what_kubelet_does_not_show_itself_is_never_certain() -> None:
    found = await asking([Scripted(Source.APISERVER, A, exact=False)]).identify(question())
    assert not found.certain


async def test_if_no_source_knows_the_error_lists_each_answer() -> None:
    identity = asking([Scripted(Source.PODS, error="kubelet is away"), Scripted(Source.APISERVER, exact=False)])
    with pytest.raises(IdentityError) as caught:
        await identity.identify(question())
    assert "20 x core" in caught.value.message
    assert "pods: kubelet is away" in caught.value.message
    assert "apiserver: shows no such container" in caught.value.message


async def test_a_source_that_is_late_is_waited_for_and_not_replaced_by_a_guess() -> None:
    late, guess = Scripted(Source.PODS, A, takes_s=0.1), Scripted(Source.APISERVER, B, exact=False)
    for _ in range(2):
        found = await asking([late, guess], patience_s=60).identify(question())
        assert (found.pod.ref.name, found.source, found.certain) == ("a", Source.PODS, True)
    assert guess.asked == 0


async def test_beside_a_late_source_the_next_one_is_asked_and_the_first_answer_counts() -> None:
    late, prompt = Scripted(Source.PODS, hangs=True), Scripted(Source.PODRESOURCES, A)
    found = await asking([late, prompt], patience_s=60).identify(question())
    assert (found.pod.ref.name, found.source) == ("a", Source.PODRESOURCES)


async def test_a_source_that_was_late_has_no_time_alone_until_it_is_prompt_again() -> None:
    first, second = Scripted(Source.PODS, A, hangs=True), Scripted(Source.PODRESOURCES, A)
    identity = asking([first, second], patience_s=60)
    await identity.identify(question())
    first.hangs = False
    await identity.identify(question())
    assert second.asked == 2
    await identity.identify(question())
    assert second.asked == 2


async def test_a_question_that_was_given_up_at_once_says_nothing_of_the_sources() -> None:
    """Kubelet may ask for hints for IDs that it does not take then."""
    first, second = Scripted(Source.PODS, A, hangs=True), Scripted(Source.PODRESOURCES, A)
    identity = asking([first, second], budget_s=60, patience_s=120)
    given_up = asyncio.create_task(identity.identify(question()))
    await until(lambda: first.asked == 1)
    given_up.cancel()
    first.hangs = False
    await identity.identify(question())
    assert second.asked == 0


async def test_silence_is_waited_for_once_and_then_only_for_the_budget_until_a_while_has_passed() -> None:
    identity = asking([Scripted(Source.PODS, hangs=True)], patience_s=0.2, dead_s=0.5)
    for waited in ("0.2", "0.02", "0.02"):
        with pytest.raises(IdentityError, match=rf"pods: no answer within {waited} s"):
            await identity.identify(question())
    await asyncio.sleep(0.5)
    with pytest.raises(IdentityError, match=r"pods: no answer within 0\.2 s"):
        await identity.identify(question())


async def test_a_dead_source_that_answers_in_its_budget_is_alive_at_once() -> None:
    source = Scripted(Source.PODS, A, hangs=True)
    identity = asking([source], patience_s=0.2, budget_s=0.1)
    with pytest.raises(IdentityError):
        await identity.identify(question())
    source.hangs = False
    await identity.identify(question())
    source.hangs = True
    with pytest.raises(IdentityError, match=r"no answer within 0\.2 s"):
        await identity.identify(question())


async def test_where_sources_are_late_the_second_call_is_for_the_container_of_the_first() -> None:
    half = IdentifiedContainer(A, A.containers[0], Source.PODS)
    late = Scripted(Source.PODS, B, hangs=True)
    found = await asking([late], patience_s=60).identify(replace(question(), half=half))
    assert found is half
    prompt = await asking([Scripted(Source.PODS, B)]).identify(replace(question(), half=half))
    assert prompt.pod.ref.name == "b"


async def test_among_several_that_kubelet_shows_the_container_of_the_first_call_is_meant() -> None:
    half = IdentifiedContainer(A, A.containers[0], Source.PODS)
    found = await asking([Scripted(Source.PODS, A, B)]).identify(replace(question(), half=half))
    assert found is half


async def test_how_long_kubelet_waited_is_observed_with_the_source_that_decided() -> None:
    observed: list[Source | None] = []
    for sources in ([Scripted(Source.PODS, A)], [Scripted(Source.PODS)]):
        with suppress(IdentityError):
            await asking(sources, observe=lambda source, seconds: observed.append(source)).identify(question())
    assert observed == [Source.PODS, None]


@dataclass
class Known(AnswerReader):
    """Records that a test has written down."""

    answers: AnswerRecords

    def given(self) -> AnswerRecords:
        return replace(self.answers, lost=frozenset())

    async def read(self, pods: Sequence[Pod], resource: Resource, *, even_running: bool = False) -> AnswerRecords:
        return self.answers


def answers(*given: str, lost: str = "", proved: str = "") -> Known:
    """`given` is written as `pod/resource`, `lost` and `proved` as pods with spaces between them."""
    found: dict[OwnerKey, set[Resource]] = {}
    for name, resource in (each.split("/") for each in given):
        found.setdefault(_key(name), set()).add(Resource(resource))
    return Known(
        AnswerRecords(
            found,
            proved=frozenset(map(_key, proved.split())),
            lost=frozenset(map(_key, lost.split())),
        )
    )


def _key(name: str) -> OwnerKey:
    return (PodUid(f"uid-{name}"), "c")


def pending(*pods: Pod, known: Known | None = None) -> PendingSource:
    def predicate_time(which: Pod) -> int | None:
        written = which.annotations.get("t")
        return int(written) if written else None

    return PendingSource(lambda: pods, known or answers(), predicate_time=predicate_time)


async def test_pending_pods_are_taken_in_the_scheduler_s_order() -> None:
    late = pod("late", ("c", 20, 4), annotations={"t": "3000000000"}, created=1.0)
    early = pod("early", ("c", 20, 4), annotations={"t": "2000000000"}, created=9.0)
    unpredicted = pod("unpredicted", ("c", 20, 4), created=2.5)
    found = await pending(late, unpredicted, early).candidates(question())
    assert [each.ref.name for each, _ in found] == ["early", "unpredicted", "late"]


async def test_if_the_guess_does_not_fit_the_container_with_both_counts_was_meant() -> None:
    """The call before asked for 4 blocks and was taken for a pod of 30 cores; this one asks for 20 cores."""
    guessed = pod("guessed", ("c", 30, 4), created=1.0)
    first = pod("first", ("c", 20, 8), created=2.0)
    meant = pod("meant", ("c", 20, 4), created=3.0)
    source = pending(guessed, first, meant, known=answers("guessed/memory"))
    found = await source.candidates(question(guess=guessed.containers[0]))
    assert [each.ref.name for each, _ in found] == ["meant"]


async def test_what_was_only_guessed_is_never_lost_by_kubelet(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, list[str]]] = [("", []), ("one", ["one"])]
    for proved, expected in cases:
        with subtests.test(proved=proved):
            one = pod("one", ("c", 20, 4))
            source = pending(one, known=answers("one/core", lost="one", proved=proved))
            found = await source.candidates(question())
            assert [each.ref.name for each, _ in found] == expected


class Listing(PodResources):
    """Kubelet's PodResources with these pods, which have no device."""

    def __init__(self, *pods: Pod) -> None:
        super().__init__(Path("unused"))
        self._shown = {each.ref.name: PodDevices(each.ref.namespace, each.ref.name, frozenset()) for each in pods}

    async def get(self, namespace: str, name: str) -> PodDevices | None:
        return self._shown.get(name)

    async def list(self) -> list[PodDevices]:
        return [*self._shown.values()]


async def test_what_kubelet_lost_is_looked_for_only_in_pods_that_it_shows() -> None:
    """Kubelet that starts again comes to one pod after the other, and the watch shows all of them at once."""

    async def fetch(namespace: str, name: str) -> Pod | None:
        return None

    lost = answers("a/core", "b/core", lost="a b")
    source = PodResourcesSource(Listing(A), lost, known=lambda: (A, B), fetch=fetch, names=ResourceNames())
    assert [each.ref.name for each, _ in await source.candidates(question())] == ["a"]
