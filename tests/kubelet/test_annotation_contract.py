"""The agent's side of the contract about a pod's annotations; the extender's is in tests/cluster, by the same table."""

import json
from pathlib import Path

import pytest

from deviceplugin.agent.reconciler import corrections, is_annotated
from deviceplugin.cluster.extender.cache.pod_hold import bound_hold
from deviceplugin.kube.pods import PodListReader
from deviceplugin.model.annotations import parse_gpu_indices
from deviceplugin.model.pod import ClusterPod, Pod
from sandbox.station import Json, pod_json, station
from tests.annotation_cases import IDS, NAMES, SIZES, Case, cases
from tests.kubelet.makers import fresh, inventory


def stale_or_not(number: int) -> tuple[Json, Case]:
    pod = pod_json("p", *((name, *size) for name, size in SIZES.items()))
    case = cases(pod["metadata"]["uid"])[number]
    pod["metadata"]["annotations"] = dict(case.annotations)
    return pod, case


def shown(pod: Json) -> Pod:
    (found,) = PodListReader().read(json.dumps({"items": [pod]}).encode())
    return found


async def test_the_agent_follows_trusted_annotations_and_writes_true_ones(
    short_tmp: Path, subtests: pytest.Subtests
) -> None:
    for number in range(len(IDS)):
        with subtests.test(IDS[number]):
            pod, case = stale_or_not(number)
            annotations = pod["metadata"]["annotations"]
            async with station(fresh(short_tmp), inventory(4)) as node:
                verdict = await node.kubelet.admit(pod)
                assert verdict.admitted, verdict.message
                await node.kubelet.wait_running(verdict.uid)
                assert {name: node.minors(verdict.uid, name) for name in SIZES} == {
                    name: [minor] for name, minor in case.placed.items()
                }

                grants = node.ledger.grants()
                for name, value in corrections(shown(pod), grants, inventory(4), NAMES).items():
                    if value is None:
                        del annotations[name]
                    else:
                        annotations[name] = value
                assert corrections(shown(pod), grants, inventory(4), NAMES) == {}, "written once"
                assert all(is_annotated(shown(pod), grant, NAMES) for grant in grants)
                held = bound_hold(ClusterPod(shown(pod)), node.context.layout.names)
                assert held.unlocated == ()
                assert held.problem == ""
                assert {each.owner.name: each.shares for each in held.allocations} == {
                    grant.allocation.owner.name: grant.allocation.shares for grant in grants
                }
                indices = {
                    name: parse_gpu_indices(text)
                    for name, text in annotations.items()
                    if NAMES.gpu_index_prefix in name
                }
                assert indices == {NAMES.gpu_indices(at): (case.placed[name],) for at, name in enumerate(SIZES)}
