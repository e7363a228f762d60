"""A change of the release that nobody's pods may notice.

In: a release that rolls out a change, and a pod to try. Out: nothing; fails if a pod is refused meanwhile, if a
container that ran was stopped, or if the pod does not start afterwards. Not here: what is changed.
"""

import time
from collections.abc import Callable

from sandbox.cluster import pods
from sandbox.cluster.waiting import PATIENCE_S
from tests.daemonset.chart import Object
from tests.e2e.installed.release import Release


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
