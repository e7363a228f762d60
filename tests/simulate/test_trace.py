"""Clusters and workloads from files, and what is said of a file that cannot be read."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.errors import ParseError, VcudaError
from deviceplugin.model.gpu import Driver, Gpu, GpuUuid, Health, Inventory
from deviceplugin.model.node import format_inventory
from deviceplugin.model.preferences import GpuFilter, NodePolicy
from deviceplugin.model.request import Request
from deviceplugin.model.topology import Topology
from deviceplugin.placement.node_state import Spare
from deviceplugin.simulate.scene import read_scene
from deviceplugin.simulate.trace import Scene, nodes_of_trace, tasks_of_trace

NODES = (
    "sn,cpu_milli,memory_mib,gpu,model\nn-0,64000,262144,2,P100\nn-1,8000,1024,0,\nn-2,96000,1,8,A10\nn-3,1,1,1,A100\n"
)
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\np,6000,12288,1,460,\nq,1,2,1,1000,A10|P100\n"


def scene_of(tmp_path: Path, nodes: str, pods: str) -> Scene:
    (tmp_path / "nodes").write_text(nodes)
    (tmp_path / "pods").write_text(pods)
    return read_scene(tmp_path / "nodes", tmp_path / "pods")


def refusal(tmp_path: Path, nodes: str, pods: str) -> str:
    with pytest.raises(ParseError) as raised:
        scene_of(tmp_path, nodes, pods)
    assert "\n" not in raised.value.message
    return raised.value.message.replace(f"{tmp_path}/", "")


def test_a_trace_is_read_with_its_cpus_gpus_and_models(tmp_path: Path) -> None:
    scene = scene_of(tmp_path, NODES, PODS)
    assert [(node.name, len(node.snapshot.gpus), node.spare) for node in scene.nodes] == [
        ("n-0", 2, Spare(64000, 262144)),
        ("n-1", 0, Spare(8000, 1024)),
        ("n-2", 8, Spare(96000, 1)),
        ("n-3", 1, Spare(1, 1)),
    ]
    assert {view.gpu.model for view in scene.nodes[0].snapshot.gpus} == {"P100"}
    first, second = scene.tasks
    assert (first.demand, first.needs, first.pod.containers[0].request) == (46, Spare(6000, 12288), Request(46, 0))
    assert second.pod.preferences.gpus == GpuFilter(models=("A10", "P100"), not_models=("A100",))


def test_a_task_asks_for_whole_cores() -> None:
    expected = {
        (0, 0): None,
        (0, 500): None,
        (1, 1000): Request(100, 0),
        (8, 1000): Request(800, 0),
        (1, 5): Request(1, 0),
        (1, 455): Request(46, 0),
        (2, 300): Request(60, 0, 2),
        (1, 995): Request(100, 0),
    }
    rows = "".join(f"1,1,{gpus},{milli}\n" for gpus, milli in expected)
    tasks = tasks_of_trace(f"cpu_milli,memory_mib,num_gpu,gpu_milli\n{rows}".encode(), file="pods", models=())
    asked = [[container.request for container in task.pod.containers] for task in tasks]
    assert asked == [[each] if each else [] for each in expected.values()]


def test_what_is_wrong_is_one_sentence_that_says_where(tmp_path: Path) -> None:
    nodes = {
        "": "is empty",
        " \n\n": "is empty",
        "sn,cpu_milli,memory_mib,gpu,model\n": "has no line below its header",
        "sn,cpu_milli,gpu\nx,1,1\n": ("line 1 has no column memory_mib and no column model; it has sn, cpu_milli, gpu"),
        NODES.replace(",", ";"): "line 1 is separated by semicolons; write commas between the columns",
        NODES.replace(",", "\t"): "line 1 is separated by tabs; write commas between the columns",
        NODES + "n-4,1,1,1\n": "line 6 has 4 fields and the header 5: column model is missing",
        NODES + "n-4,1,1,1,T4,x\n": "line 6 has 6 fields and the header 5: the rest has no column",
        NODES + "n-4,1.5,1,1,T4\n": "line 6, column cpu_milli: '1.5' is not a whole number from 0 to 1000000000",
        NODES + "n-4,1,,1,T4\n": "line 6, column memory_mib: nothing is not a whole number from 0 to 1000000000",
        NODES + "n-4,1,1,65,T4\n": "line 6, column gpu: '65' is not a whole number from 0 to 64",
        NODES + "n-4,1,1,1,\n": "line 6, column model: the 1 GPUs of node n-4 need a model",
        NODES + "n-0,1,1,1,T4\n": "line 6, column sn: node n-0 stands in line 2 already",
        NODES + ",1,1,1,T4\n": "line 6, column sn: the node has no name",
        "{": "cannot be read: Input data was truncated",
        "a: [\n": "line 2, column 1: did not find expected node content",
        "kind: Pod\n": "holds no object of kind Node",
    }
    objects = {
        "[1]": "nodes, object 1.1 is not a Kubernetes object: it has no kind",
        "sn,cpu_milli,memory_mib,gpu,model\nx,1,1,0,\n": "nodes: no node has a GPU",
        "kind: Node\nmetadata: {name: n}\nstatus: {allocatable: {cpu: many}}\n": (
            "nodes, object 1 (Node n): 'many' is not a Kubernetes quantity"
        ),
        "kind: Node\nmetadata: {name: n}\nstatus: {allocatable: [1]}\n": (
            "nodes, object 1 (Node n): Expected `object | null`, got `array` - at `$.status.allocatable`"
        ),
    }
    limited = "kind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, resources: {limits: {%s}}}]}\n"
    pods = {
        PODS + "r,1,1,1,1000,V200\n": (
            "pods line 4, column gpu_spec: no node has a GPU of model V200; the nodes have A10, A100, P100"
        ),
        PODS + "r,1,1,1,0,\n": "pods line 4, column gpu_milli: a task of 1 GPUs asks for 1 to 1000 of each, not 0",
        PODS + "r,1,1,1,1001,\n": "pods line 4, column gpu_milli: '1001' is not a whole number from 0 to 1000",
        "cpu_milli,cpu_milli,memory_mib,num_gpu,gpu_milli\n1,1,1,1,1\n": "pods line 1 has column cpu_milli twice",
        "cpu_milli,memory_mib,num_gpu,gpu_milli\n1,1,0,0\n": "pods: no pod requests a GPU",
        'cpu_milli,memory_mib,num_gpu,gpu_milli\n1,"1,0,0\n': (
            "pods line 2 is no line of comma-separated values: unexpected end of data"
        ),
        "kind: Node\n": "pods holds no object of kind Pod",
        limited % "tencent.com/vcuda-core: 150, tencent.com/vcuda-memory: 4": (
            "pods, object 1 (Pod p): tencent.com/vcuda-core: 150 is not possible; several GPUs must be requested as "
            "whole GPUs; write 100 or 200"
        ),
        limited % "nvidia.com/gpu: 1, nvidia.com/gpumem: 4000": (
            "pods, object 1 (Pod p): nvidia.com/gpumem is translated when a pod is created; take pods from a cluster "
            "with the webhook"
        ),
    }
    expected = {text: f"nodes {said}" for text, said in nodes.items()} | objects
    assert {text: refusal(tmp_path, text, PODS) for text in expected} == expected
    assert {text: refusal(tmp_path, NODES, text) for text in pods} == pods


def test_bytes_that_are_no_text_are_refused_with_their_line() -> None:
    with pytest.raises(ParseError) as raised:
        list(nodes_of_trace(NODES.encode() + b"\xff,1,1,1,x\n", file="nodes"))
    assert raised.value.message == "nodes line 6 is no UTF-8 text"


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_whatever_stands_in_a_file_it_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    folder = tmp_path_factory.mktemp("any")
    (folder / "pods").write_bytes(content)
    (folder / "nodes").write_text(NODES)
    for nodes, pods in (("nodes", "pods"), ("pods", "nodes")):
        with pytest.raises(VcudaError) as raised:
            read_scene(folder / nodes, folder / pods)
        assert raised.value.message


def container(name: str, *, requests: dict[str, Any] | None = None, limits: dict[str, Any] | None = None,
              **more: str) -> dict[str, Any]:  # fmt: skip
    return {"name": name, "resources": {"requests": requests or {}, "limits": limits or {}}, **more}


def pod_object(name: str, *containers: dict[str, Any], init: tuple[dict[str, Any], ...] = (),
               annotations: dict[str, str] | None = None) -> dict[str, Any]:  # fmt: skip
    meta = {"name": name, "namespace": "ns", "uid": name, "annotations": annotations,
            "creationTimestamp": "2026-11-21T09:00:00Z"}  # fmt: skip
    return {"kind": "Pod", "metadata": meta, "spec": {"initContainers": list(init), "containers": list(containers)}}


def node_object(
    name: str,
    allocatable: dict[str, str],
    *,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
) -> dict[str, Any]:
    meta = {"name": name, "labels": labels, "annotations": annotations}
    return {"kind": "Node", "metadata": meta, "status": {"allocatable": allocatable, "conditions": []}}


SHARE = {"tencent.com/vcuda-core": "60", "tencent.com/vcuda-memory": "32"}
PODS_OF_A_CLUSTER = [
    pod_object(
        "shared", container("main", requests={"cpu": "500m", "memory": "1Gi"}, limits=SHARE),
        container("side", requests={"cpu": 1, "memory": "100M"}),
        annotations={"tencent.com/vcuda-node-policy": "spread", "tencent.com/vcuda-gpus": "main=2"},
    ),
    pod_object("plain", container("main", limits={"nvidia.com/gpu": 2, "cpu": "0.25", "memory": "1048577"})),
    pod_object(
        "phases", container("main", requests={"cpu": 1}),
        init=(container("mesh", requests={"cpu": 1}, restartPolicy="Always"), container("fetch", requests={"cpu": 4})),
    ),
]  # fmt: skip
OURS = {"tencent.com/vcuda-core": "400", "tencent.com/vcuda-memory": "240"}
PLAIN_LABELS = {"nvidia.com/gpu.product": "NVIDIA-T4", "nvidia.com/gpu.memory": "15360"}
NODES_OF_A_CLUSTER = [
    node_object("bare", {"cpu": "8", "memory": "16Gi"}),
    node_object("ours", {"cpu": "7500m", "memory": "1Gi", **OURS}),
    node_object("plain", {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "2"}, labels=PLAIN_LABELS),
]


def as_yaml_documents(objects: list[dict[str, Any]]) -> str:
    return "# from kubectl\n" + yaml.safe_dump_all(objects)


def as_list(objects: list[dict[str, Any]]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})


def as_typed_list(objects: list[dict[str, Any]]) -> str:
    bare = [{key: value for key, value in each.items() if key != "kind"} for each in objects]
    return yaml.safe_dump({"apiVersion": "v1", "kind": f"{objects[0]['kind']}List", "items": bare})


def test_kubernetes_objects_are_read_in_every_form_that_kubectl_writes(tmp_path: Path) -> None:
    for written in [as_yaml_documents, as_list, as_typed_list]:
        scene = scene_of(tmp_path, written(NODES_OF_A_CLUSTER), written(PODS_OF_A_CLUSTER))
        described = [
            (node.name, node.spare, [(view.gpu.model, view.gpu.blocks) for view in node.snapshot.gpus])
            for node in scene.nodes
        ]
        assert described == [
            ("bare", Spare(8000, 16384), []),
            ("ours", Spare(7500, 1024), [("unknown", 60)] * 4),
            ("plain", Spare(1000, 1024), [("NVIDIA-T4", 60)] * 2),
        ], written
        shared, plain, phases = scene.tasks
        assert [each.request for each in shared.pod.containers] == [Request(60, 32, 2)], written
        assert (shared.needs, shared.pod.preferences.node) == (Spare(1500, 1024 + 96), NodePolicy.SPREAD), written
        assert ([each.request for each in plain.pod.containers], plain.needs) == ([Request(200, 0)], Spare(250, 2))
        assert (phases.demand, phases.needs) == (0, Spare(5000, 0)), written


def test_one_file_may_hold_nodes_and_pods(tmp_path: Path) -> None:
    both = as_list([*NODES_OF_A_CLUSTER, *PODS_OF_A_CLUSTER])
    scene = scene_of(tmp_path, both, both)
    assert (len(scene.nodes), len(scene.tasks)) == (3, 3)


def test_the_agents_inventory_counts_before_any_other_figure(tmp_path: Path) -> None:
    cards = (Gpu(GpuUuid("GPU-a"), 0, 3, "NVIDIA A100", 40 << 30), Gpu(GpuUuid("GPU-b"), 1, 4, "NVIDIA T4", 15 << 30))
    inventory = Inventory(cards, Topology((3, 4)), Driver("1", (12, 4)), {GpuUuid("GPU-b"): Health(False, "XID 79")})
    written = format_inventory(inventory, share_mode=False)
    annotated = node_object("n", {"cpu": "1"}, annotations={"tencent.com/vcuda-inventory": written})
    scene = scene_of(tmp_path, as_list([annotated]), as_list(PODS_OF_A_CLUSTER))
    (node,) = scene.nodes
    assert [(view.gpu.uuid, view.health.healthy) for view in node.snapshot.gpus] == [("GPU-a", True), ("GPU-b", False)]
    assert not node.share_mode


def test_an_inventory_of_another_version_is_refused_with_the_nodes_name(tmp_path: Path) -> None:
    annotated = node_object("n", {}, annotations={"tencent.com/vcuda-inventory": '{"version":9}'})
    said = refusal(tmp_path, as_list([annotated]), as_list(PODS_OF_A_CLUSTER))
    assert said.startswith("nodes, object 1.1 (Node n): annotation vcuda-inventory ")


def test_a_cordoned_gpu_stays_cordoned(tmp_path: Path) -> None:
    nodes = [
        node_object(name, {"nvidia.com/gpu": "2"}, labels=PLAIN_LABELS, annotations=annotations)
        for name, annotations in (
            ("ours", {"tencent.com/vcuda-cordon": "1"}),
            ("hamis", {"hami.io/device-cordon": "1"}),
            ("other", None),
        )
    ]
    scene = scene_of(tmp_path, as_list(nodes), as_list(PODS_OF_A_CLUSTER))
    cordoned = {node.name: set(node.cordoned) for node in scene.nodes}
    assert cordoned == {"ours": {GpuUuid("ours/1")}, "hamis": {GpuUuid("hamis/1")}, "other": set()}


def test_a_pod_that_was_listed_twice_came_once(tmp_path: Path) -> None:
    scene = scene_of(tmp_path, as_list(NODES_OF_A_CLUSTER), as_list([*PODS_OF_A_CLUSTER, *PODS_OF_A_CLUSTER]))
    assert len(scene.tasks) == len(PODS_OF_A_CLUSTER)
    nameless = [{**each, "metadata": {"name": "same"}} for each in PODS_OF_A_CLUSTER]
    assert len(scene_of(tmp_path, as_list(NODES_OF_A_CLUSTER), as_list(nameless)).tasks) == len(nameless)


def test_one_bad_object_of_an_export_is_left_out_with_a_sentence_and_the_rest_goes_on(tmp_path: Path) -> None:
    good_nodes, good_pods = NODES_OF_A_CLUSTER, PODS_OF_A_CLUSTER
    bad_nodes: list[tuple[Any, str]] = [
        (node_object("virtual", {"nvidia.com/gpu": "1k"}), "1000 GPUs are not possible; a node has 0 to 64"),
        (node_object("many", {"nvidia.com/gpu": "72"}), "72 GPUs are not possible"),
        (node_object("odd", {"cpu": "many"}), "'many' is not a Kubernetes quantity"),
        (node_object("broken", {}, annotations={"tencent.com/vcuda-inventory": "{"}), "vcuda-inventory"),
        (node_object("ours", {}), "it has no unique name"),
        ({"kind": "Node", "metadata": {"name": "n"}, "status": {"allocatable": [1]}}, "Expected `object | null`"),
        (node_object("dark", {"nvidia.com/gpu": "2"}), "does not say how much memory the GPUs of node dark have"),
        (None, "is not a Kubernetes object"),
    ]
    bad_pods: list[tuple[Any, str]] = [
        (pod_object("p1", container("c", limits={"tencent.com/vcuda-core": "150"})), "150 is not possible"),
        (pod_object("p2", container("c", limits={"nvidia.com/gpu": "x"})), "'x' is not a Kubernetes quantity"),
        (pod_object("p3", container("c", limits={**SHARE, "cpu": "x"})), "CPU or memory"),
        (pod_object("p4", container("c", limits=SHARE), annotations={"tencent.com/vcuda-gpus": "x"}), "vcuda-gpus"),
        ({"kind": "Pod", "metadata": {"name": "p5"}, "spec": []}, "Expected `object | null`"),
        ("text", "is not a Kubernetes object"),
    ]
    nodes = as_list([*(each for each, _ in bad_nodes), *good_nodes])
    pods = as_list([*(each for each, _ in bad_pods), *good_pods])
    scene = scene_of(tmp_path, nodes, pods)
    assert [node.name for node in scene.nodes] == ["ours", "bare", "plain"] or {n.name for n in scene.nodes} >= {
        "plain"
    }
    assert len(scene.tasks) == len(good_pods)
    said = [word for _, word in (*bad_nodes, *bad_pods)]
    assert [word for word in said if not any(word in each for each in scene.left_out)] == []
    assert len(scene.left_out) == len(said)
    assert all("\n" not in each for each in scene.left_out)


def test_pods_that_ask_for_memory_of_gpus_need_nodes_that_say_how_much_there_is(tmp_path: Path) -> None:
    sentence = (
        "pods: pods request memory of GPUs, and nodes does not say how much memory the GPUs of node {} have; add the "
        "agent's annotation or the label nvidia.com/gpu.memory (MiB)"
    )
    assert refusal(tmp_path, NODES, as_list(PODS_OF_A_CLUSTER)) == sentence.format("n-0")
    unlabelled = as_list([node_object("bare", {"cpu": "1", "nvidia.com/gpu": "2"})])
    assert refusal(tmp_path, unlabelled, as_list(PODS_OF_A_CLUSTER)) == sentence.format("bare")
    assert scene_of(tmp_path, unlabelled, as_list(PODS_OF_A_CLUSTER[1:])).gpus == 2


def test_a_table_from_a_spreadsheet_is_read(tmp_path: Path) -> None:
    """With a byte order mark, carriage returns, quotes and lines of nothing but commas."""
    lines = [*NODES.replace("P100", '"P100"').splitlines(), ",,,,", ""]
    (tmp_path / "nodes").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    (tmp_path / "pods").write_text(PODS)
    read = read_scene(tmp_path / "nodes", tmp_path / "pods")
    assert [node.name for node in read.nodes] == ["n-0", "n-1", "n-2", "n-3"]
    assert read.nodes[0].snapshot.gpus[0].gpu.model == "P100"
