"""What is kept of nodes is what would be found afresh, whatever came between; and it is bounded."""

from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.model.preferences import GpuPolicy, NodePolicy
from deviceplugin.placement.budget import Budget
from deviceplugin.placement.capacity_after import KeptAnswers
from deviceplugin.placement.fragmentation import ASSUMED, workload
from deviceplugin.placement.node_state import Spare
from deviceplugin.placement.nodes import NodeChoice, NodeScorer
from tests.examples import examples
from tests.placement.clusters import node, pod, some_nodes, some_pods

AMOUNTS = st.sampled_from([Spare(0, 0), Spare(1, 1), Spare(3, 1)])


def outcome(choice: NodeChoice) -> tuple[object, ...]:
    best = sorted(choice.fitting)[:4] if choice.node is None else [*choice.best]
    return (choice.node, choice.placed, dict(choice.ranked), dict(choice.refused), best)


@examples(400)
@given(st.data(), st.sampled_from(NodePolicy), st.sampled_from(GpuPolicy), st.booleans())
def test_what_was_kept_is_what_would_be_found_afresh(
    data: st.DataObject, policy: NodePolicy, gpu_policy: GpuPolicy, leaves_out: bool
) -> None:
    """Nodes change, also back; they are seen without some pods, leave, and the workload that is expected changes."""
    lives = [data.draw(some_nodes()) for _ in range(3)]
    kinds = data.draw(st.lists(st.tuples(some_pods, AMOUNTS), min_size=1, max_size=4))
    typical, now = ASSUMED, {state.name: state for state in lives[0]}

    def new() -> NodeScorer:
        return NodeScorer(typical, node_policy=policy, gpu_policy=gpu_policy, leaves_out=leaves_out)

    warm = new()
    for _ in range(data.draw(st.integers(1, 12))):
        match data.draw(st.sampled_from(("ask", "ask", "ask", "change", "change", "aside", "leave", "expect"))):
            case "change":
                state = data.draw(st.sampled_from([state for life in lives for state in life]))
                now[state.name] = state
            case "leave" if now:
                name = data.draw(st.sampled_from(sorted(now)))
                del now[name]
                warm.forget(name)
            case "expect":
                typical = workload(kinds)
                warm.expect(typical)
            case what:
                asked, needs = data.draw(st.sampled_from(kinds))
                shown = [state for state in now.values() if data.draw(st.booleans())]
                if what == "aside" and shown:
                    shown[0] = next(life[0] for life in lives if life[0].name == "node-0")
                    shown = list({state.name: state for state in reversed(shown)}.values())
                if leaves_out or all(state.spare is None or state.spare.covers(needs) for state in shown):
                    found = warm.choose(asked, shown, needs=needs)
                    assert outcome(found) == outcome(new().choose(asked, shown, needs=needs))
                    assert found.fits == len(set(found.ranked) - set(found.refused)) or found.node is None


def test_a_node_that_is_again_what_it_was_is_not_calculated_again() -> None:
    scorer, asked, spent = NodeScorer(), pod((30, 8)), []
    for state in [node("a"), node("a", used={0: (50, 40)})] * 3:
        budget = Budget()
        scorer.choose(asked, [state, node("b")], budget=budget)
        spent.append(budget.spent)
    placed = min(spent)
    assert [each > placed for each in spent] == [True, True, False, False, False, False]


def test_of_many_kinds_those_go_that_were_asked_least_lately() -> None:
    kept: KeptAnswers[str, int] = KeptAnswers(most=9)
    for kind in ("a", "b", "a", "c"):
        if not (known := kept.of(kind)):
            known.update(x=1, y=2, z=3)
            kept.added(3)
    assert [len(kept.of(kind)) for kind in ("a", "c", "b")] == [3, 3, 0]


def test_what_is_past_is_no_more_among_the_answers() -> None:
    kept: KeptAnswers[str, int] = KeptAnswers()
    kept.of("a").update(x=1, y=2)
    kept.drop("x", 4)
    assert kept.of("a") == {"y": 2}
    for thing in "opqrst":
        kept.drop(thing, 4)
    assert kept.of("a") == {}, "a kind that was not asked while so much changed is not kept"
    kept.of("a").update(z=3)
    assert kept.of("a") == {"z": 3}
