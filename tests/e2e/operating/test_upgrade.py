"""From one release to the next and back, by the commands of docs/how-to/upgrade.md, while pods with GPUs run.

Both are in the registry. Agents are replaced by hand (`agent.updateStrategy=OnDelete`), so that each version of the
agent meets each version of the scheduler; at the end Kubernetes replaces them. In each state a pod is placed and
started, and those that ran before run on with what they held. The tests follow one another.
"""

import json
import subprocess
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from sandbox.cluster import pods
from sandbox.cluster.agent import PROGRAM
from sandbox.cluster.client import JsonObject
from sandbox.cluster.waiting import PATIENCE_S, wait_until
from sandbox.emulated_gpus import REPOSITORY
from tests.daemonset.chart import Object
from tests.e2e.installed.images import vcuda_archive
from tests.e2e.installed.kubectl import Kubectl
from tests.e2e.installed.next_release import publish_next
from tests.e2e.installed.registry import Registry
from tests.e2e.installed.release import Release
from tests.e2e.node.usage import ShareUsage
from tests.e2e.node.workload import WHOLE, GpuContainer, GpuPod, share
from tests.fenced import fenced

pytestmark = [pytest.mark.e2e, pytest.mark.installed, pytest.mark.timeout(600)]


def rolls_unnoticed(release: Release, trial: Object, *, until: Callable[[], bool] | None = None) -> None:
    """`until`: the change is complete; by default when agents and schedulers are those of the last revision."""
    before = pods.states(release.admin)
    is_over, tried, began = until or release.has_rolled_out, 0, time.monotonic()
    while not is_over():
        assert time.monotonic() - began < PATIENCE_S, release.evidence()
        made = release.admin.post(f"{pods.PODS}?dryRun=All", trial)
        assert made["spec"]["schedulerName"] == "vcuda-scheduler"
        tried += 1
    assert tried > 1
    after = pods.states(release.admin)
    assert {each: after[each].containers for each in before} == {each: before[each].containers for each in before}
    pods.create(release.admin, trial)
    pods.wait_running(release.admin, [trial["metadata"]["name"]])
    assert set(release.restarts("vcuda-scheduler").values()) == {0}, release.evidence()


STEADY = (share("steady", 20, 8), GpuPod("steady-whole", (GpuContainer("main", WHOLE, 0),)))
UPGRADE, BACK = fenced(REPOSITORY / "docs" / "how-to" / "upgrade.md")
Held = dict[tuple[str, str], tuple[int, int, tuple[ShareUsage, ...]]]
"""What containers hold, by the UIDs of their pods and their names, whichever agent wrote it down."""


def holds(release: Release) -> Held:
    found = release.usage().held().containers
    return {(each.uid, each.container): (each.cores, each.blocks, each.gpus) for each in found}


def trial(name: str) -> JsonObject:
    return share(name, 10, 4).manifest()


def typed(release: Release, kubectl: Kubectl, lines: str, chart: Registry) -> str:
    """The lines of the guide, for a chart in a registry instead of a checkout."""
    asked = lines.replace("daemonset/chart", " ".join(chart.chart))
    return kubectl.shell(f'helm() {{ {release.helm} "$@"; }}\n{asked}')


def command(release: Release, *words: str) -> JsonObject:
    kubeconfig = release.cluster.control_plane.admin_kubeconfig
    asked = [str(PROGRAM), *words, "-o", "json", f"--kubeconfig={kubeconfig}"]
    document: JsonObject = json.loads(subprocess.run(asked, stdout=subprocess.PIPE, check=False).stdout)
    return document


def versions(release: Release) -> tuple[str, str]:
    """What `vcuda version` says of the scheduler; what `vcuda doctor` says of all."""
    (found,) = (each for each in command(release, "doctor")["checks"] if each["check"] == "versions")
    return command(release, "version")["schedulerVersion"], f"{found['outcome']}: {found['message']}"


def wait_versions(release: Release, scheduler: str, said: str) -> None:
    """The version of this tree's command is that of the first release."""
    expected = (scheduler, said)
    wait_until(
        lambda: versions(release) == expected, f"the versions are {expected}", evidence=lambda: str(versions(release))
    )


def delete_agent(release: Release) -> None:
    (agent,) = release.pods("vcuda-agent")
    release.admin.delete(f"/api/v1/namespaces/kube-system/pods/{agent['metadata']['name']}")


@pytest.fixture(scope="module")
def following(release: Release, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Registry:
    return publish_next(release.registry, vcuda_archive(request), tmp_path_factory.mktemp("next"))


@pytest.fixture(scope="module")
def running(release: Release) -> Release:
    """With pods, and agents that are replaced when somebody deletes them."""
    release.upgrade("--set=agent.updateStrategy=OnDelete")
    for pod in STEADY:
        pods.create(release.admin, pod.manifest())
    pods.wait_running(release.admin, [pod.name for pod in STEADY])
    return release


@pytest.fixture(scope="module")
def steady(running: Release) -> Held:
    found = holds(running)
    assert len(found) == len(STEADY)
    return found


def old_and_new(release: Release, following: Registry) -> str:
    return f"{release.registry.version}, {following.version}; this command: {release.registry.version}"


def test_the_scheduler_of_the_next_release_works_with_the_agent_of_this_one(
    running: Release, following: Registry, kubectl: Kubectl, steady: Held
) -> None:
    upgrade, status = UPGRADE.splitlines()
    typed(running, kubectl, upgrade, following)
    rolls_unnoticed(running, trial("new-scheduler"), until=running.schedulers_have_rolled_out)
    wait_versions(running, following.version, f"warning: versions differ; installed: {old_and_new(running, following)}")
    assert not running.agents_have_rolled_out()
    with pytest.raises(AssertionError, match="only available for RollingUpdate"):
        kubectl.shell(status)
    assert holds(running).items() > steady.items()


def test_the_agent_of_the_next_release_takes_over_what_runs(
    running: Release, following: Registry, steady: Held
) -> None:
    delete_agent(running)
    rolls_unnoticed(running, trial("new-both"))
    said = f"warning: versions differ; installed: {following.version}; this command: {running.registry.version}"
    wait_versions(running, following.version, said)
    assert holds(running).items() > steady.items()


def test_after_a_rollback_the_scheduler_of_this_release_works_with_the_agent_of_the_next(
    running: Release, following: Registry, kubectl: Kubectl, steady: Held
) -> None:
    assert f"vcuda-{following.version}" in typed(running, kubectl, BACK, following)
    rolls_unnoticed(running, trial("new-agent"), until=running.schedulers_have_rolled_out)
    wait_versions(
        running, running.registry.version, f"warning: versions differ; installed: {old_and_new(running, following)}"
    )
    assert not running.agents_have_rolled_out()
    assert holds(running).items() > steady.items()


def test_the_agent_of_this_release_reads_what_the_next_one_wrote(
    running: Release, following: Registry, steady: Held
) -> None:
    delete_agent(running)
    rolls_unnoticed(running, trial("old-both"))
    said = f"ok: scheduler, agents and this command all run {running.registry.version}"
    wait_versions(running, running.registry.version, said)
    written_by_the_next = {pods.states(running.admin)[name].uid for name in ("new-both", "new-agent")}
    assert {uid for uid, _ in holds(running)} > written_by_the_next
    assert holds(running).items() > steady.items()


@pytest.fixture
def journal(running: Release) -> Path:
    """Of the agent, as this machine sees it."""
    return running.cluster.layout.covers / "etc-gpu-manager" / "checkpoint" / "ledger.journal"


def test_a_journal_in_a_format_of_a_later_release_is_one_sentence_and_moved_away_it_is_built_again(
    running: Release, journal: Path, steady: Held
) -> None:
    before = holds(running)
    _, entries = journal.read_bytes().split(b"\n", 1)
    later = b"vcuda-ledger 2"
    journal.write_bytes(b"%s %08x\n" % (later, zlib.crc32(later)) + entries)
    delete_agent(running)
    sentence = (
        "the ledger's journal /etc/gpu-manager/checkpoint/ledger.journal has format 2 and this agent knows formats up "
        "to 1; run the newer agent, or move the file away to rebuild from kubelet's checkpoint"
    )
    wait_until(lambda: sentence in _words(running), "the agent says so", evidence=running.evidence)
    journal.rename(journal.with_suffix(".later"))
    wait_until(running.agents_have_rolled_out, "the agent starts", evidence=running.evidence)
    wait_until(lambda: holds(running) == before, "all is there again", evidence=lambda: str((holds(running), before)))
    pods.create(running.admin, trial("rebuilt"))
    pods.wait_running(running.admin, ["rebuilt"])


def _words(release: Release) -> str:
    """Of the agent that starts again and again."""
    return "\n".join(release.log(pod["metadata"]["name"], "agent") for pod in release.pods("vcuda-agent"))


def test_kubernetes_replaces_agent_and_scheduler_by_the_commands_of_the_guide(
    running: Release, following: Registry, kubectl: Kubectl, steady: Held
) -> None:
    running.upgrade("--set=agent.updateStrategy=RollingUpdate")
    upgrade, status = UPGRADE.splitlines()
    typed(running, kubectl, upgrade, following)
    rolls_unnoticed(running, trial("last"))
    assert 'daemon set "vcuda-agent" successfully rolled out' in kubectl.shell(status)
    said = f"warning: versions differ; installed: {following.version}; this command: {running.registry.version}"
    wait_versions(running, following.version, said)
    assert holds(running).items() > steady.items()
