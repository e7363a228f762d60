"""Flags of the agent, from the command line to what containers, kubelet and the cluster see of them."""

import json
import shutil
from pathlib import Path

import pytest

from deviceplugin.model.annotation_names import AnnotationNames
from deviceplugin.model.annotations import parse_allocation
from sandbox.gpunode import GpuNode
from sandbox.station import Json, pod_json
from tests.agent.harness import (
    PATIENCE_S,
    annotations,
    check_consistency,
    delete,
    limits,
    minors,
    node_with_agent,
    run,
    share,
    until_held_by,
)

DOMAIN = "example.org"


def specs(directory: Path) -> dict[str, Json]:
    return {path.name: json.loads(path.read_text()) for path in directory.glob("*")}


async def test_cdi_specs_are_named_in_the_answer_and_outlive_a_reboot(short_tmp: Path) -> None:
    directory = short_tmp / "cdi"
    async with node_with_agent(short_tmp, flags={"cdi": "true", "cdi-dir": directory}) as node:
        pods = [share("one", env={"LD_LIBRARY_PATH": "/opt/lib"}), pod_json("whole", ("c", 200, 0))]
        uids = await run(node, *pods)
        usage = await check_consistency(node)
        written = specs(directory)
        for entry in usage.containers:
            view = node.kubelet.container_view(entry.uid, entry.container)
            assert view.cdi == (f"tencent.com/vcuda={entry.grant}",)
            spec = written[f"vcuda-{entry.grant}.json"]
            ((name, edits),) = ((device["name"], device["containerEdits"]) for device in spec["devices"])
            assert (spec["kind"], name) == ("tencent.com/vcuda", entry.grant)
            assert {each["path"] for each in edits["deviceNodes"]} == {each.container_path for each in view.devices}
            ways = {each["containerPath"]: each["options"][0] for each in edits["mounts"]}
            assert ways == {each.container_path: "ro" if each.read_only else "rw" for each in view.mounts}
            if entry.uid == uids[0]:
                assert "LD_LIBRARY_PATH=/usr/local/nvidia/lib64:/opt/lib" in edits["env"]
        assert len(written) == 2

        await node.agent.kill()
        shutil.rmtree(directory)
        await node.start_agent()
        assert specs(directory) == written
        await delete(node, pods[0])
        await until_held_by(node, uids[1:])
        assert len(specs(directory)) == 1


async def test_what_a_container_is_given_besides_its_gpu(short_tmp: Path) -> None:
    extra = short_tmp / "extra.json"
    extra.write_text(json.dumps({"default": {"devices": ["/dev/nvidia-modeset", "/dev/not-there"]}}))
    async with node_with_agent(short_tmp, flags={"extra-config": extra}) as node:
        (node.home / "host/dev/nvidia-modeset").touch()
        soft = {"tencent.com/vcuda-core-limit": "60"}
        pods = [
            share("soft", 30, 8, annotations=soft, env={"LD_LIBRARY_PATH": "/opt/lib"}),
            share("hard", 30, 8, annotations={"tencent.com/vcuda-core-limit": "much"}, env={"compat32": "true"}),
        ]
        first, second = await run(node, *pods)
        paths = {each.container_path for each in node.kubelet.container_view(first, "c").devices}
        gpu = f"/dev/nvidia{minors(node, first)[0]}"
        assert paths == {gpu, "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-modeset"}
        assert (limits(node, first).cores, limits(node, first).soft_cores) == (30, 60)
        assert (limits(node, second).cores, limits(node, second).soft_cores) == (30, 0), "nothing was asked"
        assert library_path(node, first) == "/usr/local/nvidia/lib64:/opt/lib"
        assert library_path(node, second) == "/usr/local/nvidia/lib"
        (complaint,) = {entry["error"] for entry in node.agent.entries("annotation_ignored")}
        assert "much" in complaint
        await check_consistency(node)


def library_path(node: GpuNode, uid: str) -> str:
    """As the agent's answer says; kubelet lets the pod's own value win."""
    answers = [call.response.container_responses[0] for call in node.kubelet.calls.of("Allocate", uid=uid)]
    (full,) = (answer for answer in answers if answer.envs)
    return str(full.envs["LD_LIBRARY_PATH"])


@pytest.mark.parametrize("told", [True, False])
async def test_numa_nodes_are_advertised_if_enabled_and_aligned_ids_stay_together(short_tmp: Path, told: bool) -> None:
    async with node_with_agent(short_tmp, flags={"numa": told}, numa_alignment=True) as node:
        numa_of = {gpu["minor"]: str(gpu["numa"]) for gpu in json.loads(node.gpus.profile.read_text())["gpus"]}
        far = next(minor for minor, numa in numa_of.items() if numa == "1")
        (chosen,) = await run(node, share("chosen", 40, 8, annotations={"tencent.com/predicate-gpu-idx-0": str(far)}))
        assert minors(node, chosen) == [far]

        uids = await run(node, share("small"), share("large", 70, 8), pod_json("pair", ("c", 200, 0)))
        recorded = json.loads(node.kubelet.checkpoint_path.read_text())["Data"]["PodDeviceEntries"]
        for uid in uids:
            places = {numa for entry in recorded if entry["PodUID"] == uid for numa in entry["DeviceIDs"]}
            assert places == ({numa_of[minor] for minor in minors(node, uid)} if told else {"-1"})
        fullest = minors(node, uids[0]) == [far]
        assert fullest is not told, "the fullest GPU is beside other processors than kubelet chose"
        await check_consistency(node)


def of_domain(pod: Json) -> Json:
    return json.loads(json.dumps(pod).replace("tencent.com/", f"{DOMAIN}/"))  # type: ignore[no-any-return]


async def test_another_domain_is_another_domain_everywhere(short_tmp: Path) -> None:
    flags = {"resource-domain": DOMAIN, "cdi": "true", "cdi-dir": short_tmp / "cdi", "allocation-check-period": "300ms"}
    async with node_with_agent(short_tmp, flags=flags) as node:
        names = AnnotationNames(DOMAIN)
        assert (node.kubelet.allocatable(f"{DOMAIN}/vcuda-core"), node.kubelet.capacity("tencent.com/vcuda-core")) == (
            800,
            0,
        )
        pod = of_domain(share("p", 30, 8, annotations={"tencent.com/vcuda-core-limit": "60"}))
        (uid,) = await run(node, pod)
        view = node.kubelet.container_view(uid, "c")
        (entry,) = (await until_held_by(node, [uid])).containers
        assert view.annotations[names.container_core] == "30"
        assert view.annotations.keys() == {names.container_core, names.container_memory, names.container_device}
        assert view.cdi == (f"{DOMAIN}/vcuda={entry.grant}",)
        assert limits(node, uid).soft_cores == 60

        await node.server.until(lambda: names.allocation in annotations(node, pod), seconds=PATIENCE_S)
        assert parse_allocation(annotations(node, pod)[names.allocation]).pod == uid
        assert not [name for name in annotations(node, pod) if name.startswith("tencent.com")]
        shown = node.server.store.get("nodes", "node-1")["metadata"]
        assert shown["labels"][f"{DOMAIN}/gpu-count"] == "8"
        assert names.inventory in shown["annotations"]
        assert not [name for name in (*shown["labels"], *shown["annotations"]) if name.startswith("tencent.com")]

        await node.agent.kill()
        node.journal.unlink()
        await node.start_agent()
        (again,) = (await until_held_by(node, [uid])).containers
        assert again.grant == entry.grant, "kubelet's checkpoint is read under the same names"


@pytest.mark.parametrize(("order", "sources"), [("podresources,pods", {"podresources"}), ("apiserver,pods", {"pods"})])
async def test_identity_is_asked_for_in_the_order_given_with_the_guess_last_and_always_ends_true(
    short_tmp: Path, order: str, sources: set[str]
) -> None:
    # On a busy machine the first source may miss half a second, and the other one answers before it.
    async with node_with_agent(short_tmp, flags={"identity": order, "identity-budget": "30s"}) as node:
        pods = [share(f"p{9 - number}", 20, 8) for number in range(5)]  # kubelet's order is not that of the names
        pods.append(pod_json("several", ("c", 20, 8), ("d", 10, 4)))
        await run(node, *pods)
        usage = await check_consistency(node)
        assert {entry.source for entry in usage.containers} == sources, node.agent.entries("identity_source_failed")
