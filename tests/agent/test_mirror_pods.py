"""Static pods and their mirrors, and pods that claim to be the mirror of another pod (Security 9)."""

from collections.abc import Iterator
from pathlib import Path

from deviceplugin.agent.cluster import MirrorPods
from deviceplugin.model.allocation import PodRef, PodUid
from deviceplugin.model.pod import Pod
from deviceplugin.structs import replace
from sandbox.gpunode import GpuNode
from sandbox.station import Json
from tests.agent.harness import (
    NODE,
    PATIENCE_S,
    annotations,
    create,
    delete,
    node_with_agent,
    run,
    share,
    until_usage,
)
from tests.agent.test_live_limits import LIMIT, annotate, soft_cores, until_soft

STATIC = PodRef(PodUid("of-kubelet"), "kube-system", "etcd-n1")
VICTIM = PodRef(PodUid("uid-v"), "prod", "victim")


def of_kubelet(ref: PodRef) -> Pod:
    return Pod(ref, (), is_static=True)


def at_the_api_server(name: PodRef, mirror_of: str, *, owner: str = "Node") -> Pod:
    ref = replace(name, uid=PodUid(f"api-{name.name}"))
    return Pod(ref, (), api_uid=ref.uid, mirror_of=PodUid(mirror_of), owner_kind=owner)


MIRROR = at_the_api_server(STATIC, STATIC.uid)


def test_the_mirror_of_a_static_pod_has_kubelets_uid_and_its_own() -> None:
    """Where kubelet lists it, and where it stops and only the ledger knows it."""
    for listed, owners in (([of_kubelet(STATIC)], []), ([], [STATIC])):
        mirrors = MirrorPods(lambda owners=owners: owners)  # type: ignore[misc]
        mirrors.kubelet_lists(listed)
        (found,) = mirrors.resolved([MIRROR])
        assert (found.ref, found.api_uid, found.is_static) == (STATIC, "api-etcd-n1", True)


def test_what_kubelet_does_not_confirm_is_no_pod_of_this_node() -> None:
    mirrors = MirrorPods(lambda: [VICTIM])
    victim = Pod(VICTIM, (), api_uid=VICTIM.uid)
    mirrors.kubelet_lists([of_kubelet(STATIC), victim])
    forged = [
        at_the_api_server(replace(VICTIM, name="forged"), VICTIM.uid),
        at_the_api_server(replace(VICTIM, name="forged", namespace="mallory"), STATIC.uid),
        at_the_api_server(STATIC, "something else"),
        at_the_api_server(STATIC, STATIC.uid, owner="ReplicaSet"),
        at_the_api_server(STATIC, STATIC.uid, owner=""),
        at_the_api_server(replace(STATIC, name="nobody"), "nobody"),
    ]
    assert [each for each in forged if list(mirrors.resolved([each, victim])) != [victim]] == []


def test_what_kubelet_runs_for_the_api_server_is_no_static_pod() -> None:
    mirrors = MirrorPods(list)
    mirrors.kubelet_lists([Pod(VICTIM, (), api_uid=VICTIM.uid)])
    assert not list(mirrors.resolved([at_the_api_server(VICTIM, VICTIM.uid)]))


def _forged(node: GpuNode, uid: str) -> Json:
    """Of another user, in the namespace of the test, with all that a mirror has."""
    pod = share(
        "forged", 20, 8, annotations={"kubernetes.io/config.mirror": uid, "kubernetes.io/config.source": "file"}
    )
    pod["metadata"]["ownerReferences"] = [
        {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": "n", "controller": True}
    ]
    pod["spec"]["nodeName"] = node.kubelet.options.node_name
    return pod


async def test_a_forged_mirror_changes_nothing_of_the_pod_that_it_names(short_tmp: Path) -> None:
    values: Iterator[str] = iter(("50", "60", "70", "80"))

    async def until_seen(node: GpuNode, bystander: Json, uid: str) -> None:
        """Events come in order, and a round of the reconciler has looked at all pods since."""
        value = next(values)
        annotate(node, bystander, value)
        await until_soft(node, uid, int(value))
        change = {"metadata": {"annotations": {"tencent.com/gpu-assigned": value}}}
        node.server.store.patch("pods", "bystander", change, namespace="default")
        await node.server.until(
            lambda: annotations(node, bystander)["tencent.com/gpu-assigned"] == "true", seconds=PATIENCE_S
        )

    async with node_with_agent(short_tmp, flags={"allocation-check-period": "300ms"}) as node:
        victim, bystander = share("victim", 20, 8, annotations={LIMIT: "90"}), share("bystander", 20, 8)
        uid, other = await run(node, victim, bystander)
        await until_seen(node, bystander, other)
        forged = _forged(node, uid)
        create(node, forged)
        await until_seen(node, bystander, other)
        assert soft_cores(node, uid) == 90
        assert not {name for name in annotations(node, forged) if name.startswith("tencent.com/")}
        held = annotations(node, victim)

        node.server.store.delete("pods", "forged", namespace="default", grace=0)
        await until_seen(node, bystander, other)
        assert (soft_cores(node, uid), annotations(node, victim)) == (90, held)

        create(node, _forged(node, uid))
        await until_seen(node, bystander, other)
        await delete(node, victim)
        await until_usage(
            node,
            lambda usage: {each.pod for each in usage.containers} == {"bystander"},
            what="the victim's GPU is free again, though a pod claims to be its mirror",
        )
