"""The demo fails, with a sentence, when something that it runs is broken in fact."""

from pathlib import Path

from tests.scripts.demo import demo

UNREAD_POLICY = """
from scripts.demonstration import pods
pods.NODE_POLICY = 'example.org/nobody-reads-this'
"""
SILENT_KUBE_SCHEDULER = """
from sandbox.kubescheduler import KubeScheduler
from sandbox.scheduler import SchedulerProcess
settled = SchedulerProcess.settled_figure
hasty = {'patience_s': 1.0}  # the reservations expire after 5 s
SchedulerProcess.settled_figure = lambda *given, **named: settled(*given, **hasty | named)
end_cycle = KubeScheduler.end_cycle
async def silent(self, gang, found):
    self._say = lambda pod, why: None
    return await end_cycle(self, gang, found)
KubeScheduler.end_cycle = silent
"""
NO_TRANSLATION = """
from scripts.demonstration import cluster_steps, setup
place = cluster_steps._ClusterRun.place
def hurried(run):
    cluster_steps.WAIT_S = 5.0
    return place(run)
cluster_steps._ClusterRun.place = hurried
command = setup.scheduler_command
setup.scheduler_command = lambda home, kubeconfig: command(home, kubeconfig, '--translate-hami=false')
"""
OTHER_GPU = """
from scripts.demonstration import cluster_inspect
visible = cluster_inspect._visible
cluster_inspect._visible = lambda *given: tuple(uuid[::-1] for uuid in visible(*given))
"""


BROKEN = [
    "fragmentation keeps a node free for 8 GPUs, spread does not",
    "a gang that does not fit leaves nothing behind",
    "containers see exactly the GPUs that the extender chose",
]


async def test_broken_promises_fail_the_demo_each_by_its_name(short_tmp: Path) -> None:
    changed = UNREAD_POLICY + SILENT_KUBE_SCHEDULER + OTHER_GPU
    run = await demo("--only", "cluster", temporary=short_tmp, changed=changed)
    assert run.status == 1
    assert [line.strip().split("  ")[0] for line in run.checks("✘")] == BROKEN, run.out
    last = run.told.splitlines()[-1]
    assert last.startswith(f"demo: a check failed: {BROKEN[0]}: "), last
    assert last.endswith(" (and 2 more)"), last


async def test_a_show_that_cannot_go_on_says_why_and_shows_its_checks(short_tmp: Path) -> None:
    run = await demo("--only", "cluster", temporary=short_tmp, changed=NO_TRANSLATION)
    assert run.status == 1
    assert "a pod written for HAMi needs no change" in [line.strip().split("  ")[0] for line in run.checks("✘")]
    assert run.told.splitlines()[-1].startswith("demo: after 5 s pod hami on node none does not run: ")
    assert not list(short_tmp.iterdir())
