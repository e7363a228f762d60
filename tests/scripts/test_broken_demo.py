"""The demo fails, with a sentence, when something that it runs is broken in fact."""

import json
from pathlib import Path

import pytest

from tests.scripts.demo import demo

pytestmark = pytest.mark.timeout(180, func_only=True)

UNREAD_POLICY = """
from scripts.demonstration.cluster import cast
cast.NODE_POLICY = 'example.org/nobody-reads-this'
"""
SILENT_KUBE_SCHEDULER = """
from sandbox.kubescheduler import KubeScheduler
end_cycle = KubeScheduler.end_cycle
async def silent(self, gang, found):
    self._say = lambda pod, why: None
    return await end_cycle(self, gang, found)
KubeScheduler.end_cycle = silent
"""
NO_TRANSLATION = """
from scripts.demonstration.cluster import play, stage
play.RUN_S = 5.0
command = stage.scheduler_command
stage.scheduler_command = lambda home, kubeconfig: command(home, kubeconfig, '--translate-hami=false')
"""
OTHER_GPU = """
from scripts.demonstration.cluster import seen
visible = seen._visible
seen._visible = lambda *given: tuple(uuid[::-1] for uuid in visible(*given))
"""


BROKEN = [
    "fragmentation keeps a node whole for 8 GPUs where spread does not",
    "a gang that does not fit leaves nothing behind",
    "containers get the very GPUs that the extender chose",
]


async def test_broken_promises_fail_the_demo_each_by_its_name(short_tmp: Path) -> None:
    changed = UNREAD_POLICY + SILENT_KUBE_SCHEDULER + OTHER_GPU
    run = await demo("--only", "cluster", "--output", "json", temporary=short_tmp, changed=changed)
    verdict = json.loads(run.out)["verdict"]
    assert [each["promise"] for each in verdict["promises"] if not each["held"]] == BROKEN, run.told
    assert (run.status, verdict["ok"]) == (1, False)
    last = run.told.splitlines()[-1]
    assert last.startswith(f"demo: it is not true that {BROKEN[0]}: "), last
    assert last.endswith(" (and 2 more)"), last


async def test_a_half_that_cannot_go_on_says_why_and_shows_what_it_promised(short_tmp: Path) -> None:
    run = await demo("--only", "cluster", "--output", "json", temporary=short_tmp, changed=NO_TRANSLATION)
    verdict = json.loads(run.out)["verdict"]
    assert run.status == 1
    assert "a pod written for HAMi needs no change" in [
        each["promise"] for each in verdict["promises"] if not each["held"]
    ]
    assert run.told.splitlines()[-1].startswith("demo: after 5 s pod hami on node none does not run: ")
    assert not list(short_tmp.iterdir())
