"""Templates are there for the pods that name them, and for no others; a real local API server keeps them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import structlog

from deviceplugin.kube.cluster_client import ClusterClient
from deviceplugin.kube.credentials import Credentials
from deviceplugin.kube.kubeconfig_process import read
from deviceplugin.model.claim_template import ClaimSize, template_name
from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.preferences import ANY_GPU, GpuFilter
from deviceplugin.model.units import ResourceNames
from deviceplugin.scheduler.claim_templates import ClaimTemplates
from sandbox.apiserver import ApiServer, JsonObject
from sandbox.apiserver.faults import Harm
from tests.kube.kubeconfigs import open_transport
from tests.waiting import in_background, until

LABELS = {"tencent.com/vcuda-claims": "true"}
FIFTH = template_name(ClaimSize(1, 20, 8), ANY_GPU)
HALF = template_name(ClaimSize(1, 50, 8), ANY_GPU)
WHOLE = template_name(ClaimSize(1, 100, 0), ANY_GPU)


@dataclass
class Scene:
    """`leads` and `now` are the test's; `begun` counts rounds."""

    server: ApiServer
    leads: bool = True
    now: float = 0.0
    begun: int = 0

    def asked_whether_it_leads(self) -> bool:
        self.begun += 1
        return self.leads

    async def rounds(self) -> None:
        """One that begins from now on has ended."""
        goal = self.begun + 2
        await until(lambda: self.begun >= goal)

    def pod(
        self,
        name: str,
        *templates: str,
        annotations: dict[str, str] | None = None,
        labelled: bool = True,
        namespace: str = "default",
    ) -> None:
        meta = {"name": name, "labels": LABELS if labelled else {}, "annotations": annotations or {}}
        claims = [{"name": f"c{at}", "resourceClaimTemplateName": each} for at, each in enumerate(templates)]
        spec = {"containers": [{"name": "main", "image": "i"}], "resourceClaims": claims}
        self.server.store.create("pods", {"metadata": meta, "spec": spec}, namespace=namespace)

    def templates(self) -> list[JsonObject]:
        return self.server.store.objects("resourceclaimtemplates")

    def names(self) -> set[str]:
        return {each["metadata"]["name"] for each in self.templates()}

    def namespaces(self) -> set[str]:
        return {each["metadata"]["namespace"] for each in self.templates()}


@asynccontextmanager
async def keeping(folder: Path, *, leads: bool = True) -> AsyncIterator[Scene]:
    async with ApiServer(bookmark_seconds=0.05) as server:
        scene = Scene(server, leads)
        credentials = Credentials(server.kubeconfig(folder / "kubeconfig"), read=read)
        async with ClusterClient(await open_transport(None, credentials=credentials)) as client:
            keeper = ClaimTemplates(
                client, ResourceNames(), leads=scene.asked_whether_it_leads, again_s=0.1, clock=lambda: scene.now
            )
            async with in_background(keeper.run()):
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
    await scene.rounds()
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
