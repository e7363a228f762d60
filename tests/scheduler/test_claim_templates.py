"""Templates are there for the pods that name them, and for no others; a real local API server keeps them."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import structlog

from deviceplugin.kube.cluster_client import ClusterClient
from deviceplugin.kube.credentials import Credentials
from deviceplugin.model import claims
from deviceplugin.model.allocation import PodRef
from deviceplugin.model.claims import MOST_TEMPLATES, ClaimNames, ClaimSize, NamedTemplates
from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.preferences import ANY_GPU, GpuFilter
from deviceplugin.model.units import ResourceNames
from deviceplugin.scheduler.claim_templates import MOST_OF_A_NAMESPACE, NO_ROOM, TOO_MANY, WRONG, ClaimTemplates
from sandbox.apiserver import ApiServer, JsonObject
from sandbox.apiserver.faults import Harm
from tests.kube.kubeconfigs import open_transport
from tests.scheduler.scene import cluster
from tests.waiting import in_background, until

LABELS = {"tencent.com/vcuda-claims": "true"}


def template_name(size: ClaimSize, wanted: GpuFilter = ANY_GPU) -> str:
    return NamedTemplates(wanted, ClaimNames("tencent.com")).name(size)


FIFTH, HALF, WHOLE = map(template_name, (ClaimSize(1, 20, 8), ClaimSize(1, 50, 8), ClaimSize(1, 100, 0)))
SIZES = [template_name(ClaimSize(1, 1 + at % 99, 1 + at // 99)) for at in range(8000)]


@dataclass
class Scene:
    """`leads` and `now` are the test's; `begun` counts rounds. `told` has the names of pods that were refused."""

    server: ApiServer
    leads: bool = True
    now: float = 0.0
    begun: int = 0
    told: list[tuple[str, str]] = field(default_factory=list)
    keeper: ClaimTemplates = field(init=False)

    def refused(self, pod: PodRef, why: str) -> None:
        self.told.append((str(pod), why))

    def asked_whether_it_leads(self) -> bool:
        self.begun += 1
        return self.leads

    async def rounds(self) -> None:
        """One that begins from now on has ended, and what it wrote was answered."""
        goal = self.begun + 2
        await until(lambda: self.begun >= goal and not self.keeper._stirred)
        await until(lambda: not any(part.is_writing for part in self.keeper._parts.values()))

    async def until_pods(self, count: int) -> None:
        """The keeper has seen the others go."""
        await until(lambda: len(self.keeper._pods.items) == count)

    def pod(
        self,
        name: str,
        *templates: str,
        annotations: dict[str, str] | None = None,
        labelled: bool = True,
        namespace: str = "default",
        containers: int = 8,
    ) -> None:
        labels = LABELS if labelled else {}
        made_claiming(
            self.server,
            name,
            *templates,
            namespace=namespace,
            annotations=annotations or {},
            labels=labels,
            containers=containers,
        )

    def templates(self) -> list[JsonObject]:
        return self.server.store.objects("resourceclaimtemplates")

    def names(self) -> set[str]:
        return {each["metadata"]["name"] for each in self.templates()}

    def of(self, namespace: str) -> set[str]:
        return {each["metadata"]["name"] for each in self.templates() if each["metadata"]["namespace"] == namespace}

    def namespaces(self) -> set[str]:
        return {each["metadata"]["namespace"] for each in self.templates()}


@asynccontextmanager
async def keeping(folder: Path, *, leads: bool = True) -> AsyncIterator[Scene]:
    async with ApiServer(bookmark_seconds=0.05) as server:
        scene = Scene(server, leads)
        credentials = Credentials(server.kubeconfig(folder / "kubeconfig"))
        async with ClusterClient(await open_transport(None, credentials=credentials)) as client:
            scene.keeper = ClaimTemplates(
                client,
                ResourceNames(),
                leads=scene.asked_whether_it_leads,
                refused=scene.refused,
                again_s=0.1,
                clock=lambda: scene.now,
            )
            async with in_background(scene.keeper.run()):
                yield scene


@pytest.fixture
async def scene(short_tmp: Path) -> AsyncIterator[Scene]:
    async with keeping(short_tmp) as found:
        yield found


async def test_a_pod_gets_the_template_that_it_names_again_where_it_was_deleted(scene: Scene) -> None:
    scene.pod("one", FIFTH)
    await scene.server.until(lambda: scene.names() == {FIFTH})
    (found,) = scene.templates()
    assert found["metadata"]["labels"] == LABELS
    (request,) = found["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"]["capacity"] == {"requests": {"cores": "20", "memory": "2048Mi"}}
    scene.server.store.delete("resourceclaimtemplates", FIFTH, namespace="default")
    await scene.server.until(
        lambda: [each["metadata"]["uid"] for each in scene.templates()] not in ([], [found["metadata"]["uid"]])
    )


async def test_what_no_pod_names_for_an_hour_goes(scene: Scene) -> None:
    scene.pod("one", FIFTH)
    await scene.server.until(lambda: scene.names() == {FIFTH})
    scene.server.store.delete("pods", "one", namespace="default")
    await scene.until_pods(0)
    scene.now = 3500
    await scene.rounds()
    assert scene.names() == {FIFTH}
    scene.now = 7200
    await scene.server.until(lambda: scene.names() == set())


async def test_a_filter_is_in_the_template_of_the_pod_that_has_it(scene: Scene) -> None:
    name = template_name(ClaimSize(1, 20, 8), GpuFilter(uuids=frozenset({GpuUuid("GPU-7")})))
    scene.pod("filtered", name, annotations={"tencent.com/vcuda-use-gpus": "GPU-7"})
    await scene.server.until(lambda: scene.names() == {name})
    assert "GPU-7" in str(scene.templates())


async def test_a_name_that_says_something_else_or_is_of_others_gets_none(scene: Scene) -> None:
    with structlog.testing.capture_logs() as logs:
        scene.pod("nonsense", "vcuda-nonsense")
        scene.pod("forged", "vcuda-1x20c8b-0123456789")
        scene.pod("other", "somebody-elses")
        scene.pod("unmarked", FIFTH, labelled=False)
        scene.pod("last", HALF)
        await scene.server.until(lambda: HALF in scene.names())
        await scene.rounds()
    assert scene.names() == {HALF}
    refused = [each for each in logs if each["event"] == "claim_template_refused"]
    assert len(refused) == 2, "each is said once"


async def test_only_the_leader_writes(short_tmp: Path) -> None:
    async with keeping(short_tmp, leads=False) as scene:
        scene.pod("one", FIFTH)
        await scene.rounds()
        assert scene.names() == set()
        scene.leads = True
        await scene.server.until(lambda: scene.names() == {FIFTH})


@asynccontextmanager
async def changing_without_pause(scene: Scene) -> AsyncIterator[None]:
    """A pod of a namespace of its own changes several times in each period of the keeper."""

    async def change() -> None:
        for at in itertools.count():
            patch = {"metadata": {"annotations": {"tencent.com/vcuda-avoid-models": f"m{at}"}}}
            scene.server.store.patch("pods", "busy", patch, namespace="busy")
            await asyncio.sleep(0.02)

    scene.pod("busy", WHOLE, namespace="busy")
    async with in_background(change()):
        yield


async def test_who_begins_to_lead_looks_everywhere_while_one_namespace_changes_without_pause(short_tmp: Path) -> None:
    async with keeping(short_tmp, leads=False) as scene:
        scene.pod("one", FIFTH)
        await scene.until_pods(1)
        async with changing_without_pause(scene):
            await scene.rounds()
            scene.leads = True
            await until(lambda: FIFTH in scene.of("default"))


async def test_what_is_due_after_a_time_is_done_while_one_namespace_changes_without_pause(scene: Scene) -> None:
    """A write that failed is tried again, and what no pod names any more goes."""
    fault = scene.server.faults.add(Harm.STATUS, code=403, times=1, method="POST", path="/namespaces/default/")
    scene.pod("one", FIFTH)
    await until(lambda: fault.times == 0)
    await scene.rounds()
    async with changing_without_pause(scene):
        scene.now = 10
        await until(lambda: scene.of("default") == {FIFTH})
        scene.server.store.delete("pods", "one", namespace="default")
        await until(lambda: FIFTH not in str(scene.keeper._parts["default"].namers))
        scene.now = 7200
        await until(lambda: scene.of("default") == set())


TEAMS = [f"team-{at}" for at in range(8)]
BUT_TEAM_3 = {*TEAMS} - {"team-3"}
IN_TEAM_3 = "/namespaces/team-3/resourceclaimtemplates"


@pytest.mark.parametrize("harm", [Harm.STATUS, Harm.HANG])
async def test_a_namespace_that_refuses_templates_keeps_no_other_one_waiting(scene: Scene, harm: Harm) -> None:
    """By a quota or a policy, because it is being deleted, or because a webhook of its own never answers."""
    scene.server.faults.add(harm, code=403, times=100_000, method="POST", path=IN_TEAM_3)
    for team in TEAMS:
        scene.pod("one", FIFTH, HALF, namespace=team)
    await scene.server.until(lambda: len(scene.templates()) == 2 * len(BUT_TEAM_3))
    assert scene.namespaces() == BUT_TEAM_3
    scene.pod("two", WHOLE, namespace="team-5")
    await scene.server.until(lambda: WHOLE in scene.names())


@pytest.mark.parametrize("harm", [Harm.STATUS, Harm.HANG])
async def test_a_template_that_cannot_be_deleted_keeps_no_other_one(scene: Scene, harm: Harm) -> None:
    for team in TEAMS:
        scene.pod("one", FIFTH, namespace=team)
    await scene.server.until(lambda: scene.namespaces() == {*TEAMS})
    scene.server.faults.add(harm, code=403, times=100_000, method="DELETE", path=IN_TEAM_3)
    for team in TEAMS:
        scene.server.store.delete("pods", "one", namespace=team)
    await scene.until_pods(0)
    scene.now = 7200
    await scene.server.until(lambda: scene.namespaces() == {"team-3"})


async def test_one_template_that_is_refused_keeps_no_other_one_of_its_namespace(scene: Scene) -> None:
    """Others may fit into what a quota leaves, or are not what a policy forbids."""
    scene.server.faults.add(Harm.STATUS, code=403, times=1, method="POST", path="resourceclaimtemplates")
    scene.pod("one", FIFTH, HALF, WHOLE)
    await scene.server.until(lambda: len(scene.names()) == 2)


async def test_a_refused_template_is_said_once_and_tried_again_later_and_later(scene: Scene) -> None:
    fault = scene.server.faults.add(Harm.STATUS, code=403, times=100, method="POST", path="resourceclaimtemplates")
    with structlog.testing.capture_logs() as logs:
        scene.pod("one", FIFTH)
        waits = []
        for tried in range(1, 6):
            began = scene.now
            while fault.times > 100 - tried:
                scene.now += 0.05
                await scene.rounds()
            waits.append(scene.now - began)
        scene.server.faults.clear()
        while scene.names() != {FIFTH}:  # the last refusal may be noted only after the clock was moved
            scene.now += 300
            await scene.rounds()
    assert waits[4] > 2 * waits[2] > 2 * waits[1], waits
    said = [each for each in logs if each["event"] == "claim_template_failed"]
    assert [(each["namespace"], each["template"]) for each in said] == [("default", FIFTH)]


WORDS = ",".join(["a"] * 5000)
DEAR = {"tencent.com/vcuda-use-models": WORDS, "tencent.com/vcuda-avoid-models": WORDS}


async def test_a_pod_that_names_more_templates_than_it_has_containers_gets_none(scene: Scene) -> None:
    scene.pod("many", *SIZES[:9], containers=8)
    scene.pod("large", *SIZES[: MOST_TEMPLATES + 1], containers=MOST_TEMPLATES + 1)
    scene.pod("full", *SIZES[-MOST_TEMPLATES:], containers=MOST_TEMPLATES)
    scene.pod("repeated", *[SIZES[100]] * 900, containers=1)
    await scene.server.until(lambda: scene.names() == {*SIZES[-MOST_TEMPLATES:], SIZES[100]})
    await until(lambda: len(scene.told) == 2)
    (_, nine), (_, large) = sorted(scene.told, reverse=True)
    assert "names 9 claim templates of vcuda and may name 8" in nine
    assert f"names {MOST_TEMPLATES + 1} claim templates of vcuda and may name {MOST_TEMPLATES}" in large
    assert scene.keeper.refusals[TOO_MANY] == 2


async def test_what_a_pod_asks_for_is_read_once_however_many_templates_it_names(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def counted(wanted: GpuFilter) -> str:
        read.append("")
        return digest_of(wanted)

    digest_of = claims._digest
    monkeypatch.setattr(claims, "_digest", counted)
    words = ",".join(f"GPU-{at}" for at in range(380))
    scene.pod("wrong", *SIZES[:64], annotations={"tencent.com/vcuda-use-gpus": words}, containers=64)
    await until(lambda: scene.told)
    for _ in range(5):
        await scene.rounds()
    assert len(read) == 1
    assert scene.keeper.refusals[WRONG] == 1


async def test_the_loop_has_its_turn_between_dear_pods(scene: Scene) -> None:
    turns = [0]

    async def count() -> None:
        while True:
            await asyncio.sleep(0)
            if turns[-1] != len(scene.keeper._unsaid) + len(scene.told):
                turns.append(len(scene.keeper._unsaid) + len(scene.told))

    async with in_background(count()):
        for at in range(40):
            scene.pod(f"dear-{at}", SIZES[at], annotations=DEAR, namespace=f"team-{at % 4}")
        await until(lambda: len(scene.told) == 40)
    assert {after - before for before, after in itertools.pairwise(turns)} == {1}


async def test_one_namespace_has_its_part_and_others_their_turn(scene: Scene) -> None:
    """8,000 names by 125 pods that name as many as they may."""
    for at in range(0, 8000, 64):
        scene.pod(f"pod-{at}", *SIZES[at : at + 64], namespace="greedy", containers=64)
    await scene.server.until(lambda: scene.of("greedy") != set())
    before = len(scene.of("greedy"))
    scene.pod("one", FIFTH, namespace="other")
    await scene.server.until(lambda: scene.of("other") == {FIFTH})
    assert len(scene.of("greedy")) - before < 64, "not one after the other"
    await until(lambda: scene.keeper.refusals[NO_ROOM] == 121)
    await scene.server.until(lambda: len(scene.of("greedy")) == MOST_OF_A_NAMESPACE)
    await scene.rounds()
    assert len(scene.of("greedy")) == MOST_OF_A_NAMESPACE
    assert {json.dumps(why) for _, why in scene.told} == {
        json.dumps(
            "namespace greedy has 256 claim templates, the most that vcuda keeps for one; the pod is Pending until one "
            "is deleted, a minute after the last pod that named it"
        )
    }


async def test_a_full_namespace_makes_room_a_minute_after_its_pods_have_ended(scene: Scene) -> None:
    for at in range(0, 320, 64):
        scene.pod(f"pod-{at}", *SIZES[at : at + 64], namespace="greedy", containers=64)
    await until(lambda: len(scene.of("greedy")) == MOST_OF_A_NAMESPACE and len(scene.told) == 1)
    (waits,) = (name for name, _ in scene.told)
    for at in range(0, 320, 64):
        if waits != f"greedy/pod-{at}":
            scene.server.store.delete("pods", f"pod-{at}", namespace="greedy")
    await scene.until_pods(1)
    scene.now = 59
    await scene.rounds()
    assert len(scene.of("greedy")) == MOST_OF_A_NAMESPACE
    scene.now = 61
    first = int(waits.rpartition("-")[2])
    await scene.server.until(lambda: scene.of("greedy") >= {*SIZES[first : first + 64]})


async def test_templates_that_others_label_are_a_part_of_their_own_namespace(scene: Scene) -> None:
    for at in range(300):
        meta = {"name": f"mine-{at}", "labels": LABELS, "finalizers": ["example.com/stay"]}
        spec: JsonObject = {"spec": {"devices": {}}}
        scene.server.store.create("resourceclaimtemplates", {"metadata": meta, "spec": spec}, namespace="greedy")
    scene.pod("one", FIFTH, namespace="greedy")
    scene.pod("one", FIFTH, namespace="other")
    await scene.server.until(lambda: scene.of("other") == {FIFTH})
    await until(lambda: scene.keeper.refusals[NO_ROOM] == 1)
    assert FIFTH not in scene.of("greedy")


async def test_a_pod_that_is_changed_again_and_again_is_read_once_a_turn_with_its_last_state(scene: Scene) -> None:
    scene.pod("one", FIFTH, namespace="greedy")
    for at in range(200):
        patch = {"metadata": {"annotations": {"tencent.com/vcuda-use-gpus": f"GPU-{at}"}}}
        scene.server.store.patch("pods", "one", patch, namespace="greedy")
    scene.pod("one", FIFTH, namespace="other")
    await scene.server.until(lambda: scene.of("other") == {FIFTH})
    await until(lambda: scene.keeper.refusals[WRONG] == 1)
    await scene.rounds()
    assert len(scene.told) == 1


async def test_a_replica_that_begins_to_lead_says_what_it_refused_before(short_tmp: Path) -> None:
    async with keeping(short_tmp, leads=False) as scene:
        scene.pod("forged", "vcuda-1x20c8b-0123456789")
        await scene.rounds()
        assert scene.told == []
        scene.leads = True
        await until(lambda: [name for name, _ in scene.told] == ["default/forged"])


async def test_a_pod_of_fifteen_thousand_wrong_names_is_told_and_counted_and_others_get_theirs(tmp_path: Path) -> None:
    """The process, and a pod of the largest size that the API server takes."""
    async with cluster(tmp_path) as scene:
        replica = await scene.replica("replica-a", "--translate-to-claims", "--leader-election", "none")
        await scene.until_ready(replica)
        names = [f"vcuda-1x{1 + at % 99}c{1 + at // 99}b" for at in range(15_000)]
        made = {name: made_claiming(scene.api, name, *names) for name in ("many", "wrong")}
        other = made_claiming(scene.api, "one", FIFTH, namespace="other", annotations={})
        await scene.api.until(lambda: scene.api.store.objects("resourceclaimtemplates", namespace="other") != [])
        assert [each["metadata"]["name"] for each in scene.api.store.objects("resourceclaimtemplates")] == [FIFTH]
        told = await scene.event(made["many"])
        assert (told["reason"], told["type"]) == ("GPUClaimRefused", "Warning")
        assert "the pod names 15000 claim templates of vcuda and may name 1" in told["message"]
        await scene.until_metric(replica, 'vcuda_scheduler_claim_templates_refused_total{reason="too_many_names"}', 2)
        assert await scene.metric(replica, "vcuda_scheduler_claim_templates_refused_total") == 2
        assert other["metadata"]["uid"] not in str(scene.api.store.objects("events"))


def made_claiming(
    server: ApiServer,
    name: str,
    *templates: str,
    namespace: str = "default",
    annotations: dict[str, str] = DEAR,
    labels: dict[str, str] = LABELS,
    containers: int = 1,
) -> JsonObject:
    meta = {"name": name, "labels": labels, "annotations": annotations}
    claims = [{"name": f"c{at}", "resourceClaimTemplateName": each} for at, each in enumerate(templates)]
    inside = [{"name": f"main-{at}", "image": "i"} for at in range(containers)]
    made = {"metadata": meta, "spec": {"containers": inside, "resourceClaims": claims}}
    return server.store.create("pods", made, namespace=namespace)
