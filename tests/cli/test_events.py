"""`vcuda events`: the newest last, by namespace, node and kind."""

from pathlib import Path

from deviceplugin.model.cluster_view import ClusterEventKind, ClusterEventRow
from tests.cli.command_runner import vcuda
from tests.cli.view_server import AT, SERVICE, Cluster, event, pod


def cluster() -> Cluster:
    ill = ClusterEventRow(ClusterEventKind.GPU, AT - 5, AT - 5, 1, "", "", "", "node-b", "GPU 1 takes no new pods")
    recent = [
        ill,
        event("big", ClusterEventKind.WAITS, count=3),
        event("web", ClusterEventKind.ENDED, namespace="shop"),
    ]
    pods = [pod("big", node=None), pod("web", "shop")]
    return Cluster(pods=pods, events=recent)


async def test_the_events_of_the_context_s_namespace(tmp_path: Path) -> None:
    scene = cluster()
    result = await vcuda(scene, tmp_path, "events")
    assert (result.exit_code, result.stderr) == (0, "")
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["LAST", "SEEN", "KIND", "OBJECT", "NODE", "MESSAGE"],
        ["60s", "waits", "pod/big", "node-a", "what", "happened"],
    ]
    assert scene.asked[-1] == (f"{SERVICE}/view/events", {"namespace": "research", "limit": "5000"})


async def test_all_namespaces_have_nodes_and_gpus_too_the_newest_last(tmp_path: Path) -> None:
    lines = (await vcuda(cluster(), tmp_path, "events", "-A", "-o", "wide")).stdout.splitlines()
    assert [line.split()[:4] for line in lines[1:]] == [
        ["research", "60s", "waits", "pod/big"],
        ["shop", "60s", "ended", "pod/web"],
        ["-", "5s", "gpu", "node/node-b"],
    ]
    assert lines[1].split()[5:7] == ["3", "2m"]


async def test_what_is_asked_for_is_asked_of_the_scheduler(tmp_path: Path) -> None:
    scene = cluster()
    await vcuda(scene, tmp_path, "events", "-A", "--node", "node/node-b", "--kind", "gpu")
    assert scene.asked[-1][1] == {"kind": "gpu", "node": "node-b", "limit": "5000"}


async def test_nothing_happened_is_said_on_standard_error(tmp_path: Path) -> None:
    result = await vcuda(Cluster(), tmp_path, "events", "-A")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "No events found.\n")


async def test_an_older_scheduler_has_no_events(tmp_path: Path) -> None:
    scene = cluster()
    scene.answers[f"{SERVICE}/view/events"] = (404, '{"error": "no such view; the views are ...", "leader": "a"}')
    result = await vcuda(scene, tmp_path, "events")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("vcuda: the scheduler is older than this command; upgrade it")
