"""Any interleaving of changes, broken connections and compactions ends in the server's state.

Each example is a script; the last step of every example is that the server works again.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from deviceplugin.kube.client import KubeClient
from deviceplugin.kube.collection import EventKind
from deviceplugin.kube.pods import pods_of_node
from deviceplugin.kube.reflector import Reflector, StoreChange, WatchTiming
from deviceplugin.kube.transport import Timeouts
from deviceplugin.model.allocation import PodUid
from deviceplugin.model.pod import Pod
from sandbox.apiserver import ApiError, ApiServer, Harm, pod
from tests.examples import examples
from tests.kube.kubeconfigs import open_transport
from tests.waiting import in_background, until

NODE = "n1"
TIMEOUTS = Timeouts(connect=0.5, request=0.5, silence=0.3)
PACE = WatchTiming(watch=1, first_wait=0.002, most_wait=0.01)


@dataclass(frozen=True)
class Step:
    """One thing that happens; `during` happens while the server cannot be reached."""

    action: str
    name: str = ""
    during: tuple["Step", ...] = ()


names = st.sampled_from(["a", "b", "c"])
changes = st.builds(Step, st.sampled_from(["create", "create elsewhere", "bind", "run", "delete", "erase"]), names)
outages = st.lists(changes | st.just(Step("compact")), min_size=1, max_size=5).map(tuple)
steps = st.one_of(
    changes,
    st.builds(Step, st.just("break"), st.sampled_from([harm.value for harm in Harm])),
    st.builds(Step, st.sampled_from(["breathe", "compact", "reconnect"])),
    st.builds(Step, st.just("outage"), during=outages),
)


class Story:
    """Performs a script against one server."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self.store = server.store

    async def perform(self, step: Step) -> None:
        with suppress(ApiError):  # a step that the server refuses is a step that changes nothing
            await self._perform(step)

    async def _perform(self, step: Step) -> None:
        match step.action:
            case "create":
                self.store.create("pods", pod(step.name, node=NODE))
            case "create elsewhere":
                self.store.create("pods", pod(step.name))
            case "bind":
                self.store.bind(step.name, NODE)
            case "run":
                self.store.set_status(step.name, {"phase": "Running"})
            case "delete":
                self.store.delete("pods", step.name, namespace="default")
            case "erase":
                self.store.delete("pods", step.name, namespace="default", grace=0)
            case "compact":
                self.server.compact()
            case "break":
                code = 410 if step.name == Harm.ERROR_WATCH.value else 500
                self.server.faults.add(Harm(step.name), code=code, body=b"{")
            case "reconnect":
                await self.server.drop_watches()
            case "outage":
                async with self.server.refuse():
                    for change in step.during:
                        await self.perform(change)
            case _:
                await asyncio.sleep(0.02)

    def truth(self) -> dict[str, str]:
        return {
            item["metadata"]["uid"]: item["metadata"]["resourceVersion"]
            for item in self.store.objects("pods")
            if item["spec"].get("nodeName") == NODE
        }


def versions(pods: dict[PodUid, Pod]) -> dict[str, str]:
    return {uid: found.resource_version for uid, found in pods.items()}


async def follow(script: list[Step], kubeconfig: Path) -> None:
    heard: dict[PodUid, Pod] = {}
    surprises: list[StoreChange[Pod]] = []

    def replay(change: StoreChange[Pod]) -> None:
        if (change.kind is EventKind.ADDED) is (change.item.ref.uid in heard):
            surprises.append(change)
        if change.kind is EventKind.DELETED:
            heard.pop(change.item.ref.uid, None)
        else:
            heard[change.item.ref.uid] = change.item

    async with (
        ApiServer(bookmark_seconds=0.05) as server,
        KubeClient(await open_transport(server.kubeconfig(kubeconfig), timeouts=TIMEOUTS)) as client,
    ):
        story = Story(server)
        reflector = Reflector(client, pods_of_node(NODE), pace=PACE, jitter=lambda: 0.5)
        reflector.subscribe(replay)
        async with in_background(reflector.run()):
            await asyncio.wait_for(reflector.synced.wait(), 60)
            for step in script:
                await story.perform(step)
                await asyncio.sleep(0.002)  # long enough to be seen alone mostly, not always
            server.faults.clear()
            await until(lambda: reflector.synced.is_set() and versions(dict(reflector.items)) == story.truth())
            assert heard == dict(reflector.items)
            assert not surprises


@given(st.lists(steps, max_size=25))
@examples(40, dear=True, suppress=[HealthCheck.function_scoped_fixture])
def test_any_interleaving_ends_in_the_servers_state(tmp_path: Path, script: list[Step]) -> None:
    asyncio.run(follow(script, tmp_path / "kubeconfig"))
