"""`scripts/demo`: both plays, the document, its manners."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.scripts.demo import demo, start

pytestmark = pytest.mark.timeout(180, func_only=True)

MIB = 1 << 20


async def test_the_nodes_half_keeps_its_promises_and_prints_one_document(short_tmp: Path) -> None:
    run = await demo("--only", "node", "--output", "json", temporary=short_tmp)
    assert run.status == 0, run.told
    document: dict[str, Any] = json.loads(run.out)
    assert document["verdict"]["ok"]
    assert [promise["held"] for promise in document["verdict"]["promises"]] == [True] * 10
    assert document["cluster"] is None
    pods = {pod["name"]: pod for pod in document["pods"]}
    assert len(pods["pretrain"]["gpus"]) == 4
    assert pods["notebook-ann"]["gpus"] == pods["notebook-bob"]["gpus"]
    assert (pods["pipeline"]["cores"], pods["pipeline"]["blocks"]) == (35, 48)
    container = pods["finetune"]["containers"][0]
    assert container["env"]["NVIDIA_VISIBLE_DEVICES"].startswith("GPU-")
    assert {mount["container_path"] for mount in container["mounts"]} == {"/etc/vcuda", "/usr/local/nvidia"}
    share = pods["notebook-ann"]["containers"][0]
    uuid = share["env"]["NVIDIA_VISIBLE_DEVICES"]
    assert {mount["container_path"]: mount["read_only"] for mount in share["mounts"]} == {
        "/etc/vcuda": True,
        "/etc/vcuda/state/region": False,
        f"/etc/vcuda/state/{uuid}.activity": False,
        f"/etc/vcuda/gpus/{uuid}": True,
        "/usr/local/nvidia": True,
    }
    assert "/dev/nvidiactl" in {device["container_path"] for device in container["devices"]}
    assert "150" in {pod["name"]: pod["message"] for pod in document["refused"]}["typo"]
    ledger = document["ledger"]
    assert len(ledger["before_kill"]["containers"]) >= 10
    assert ledger["at_the_end"]["containers"] == []
    check_greedy({each["pod"]: each for each in document["greedy"]})
    assert "4096 MiB" in run.told
    assert "SIGKILL" in run.told, "the show goes to stderr"
    assert not list(short_tmp.iterdir()), "nothing is left behind"


def check_greedy(greedy: dict[str, Any]) -> None:
    assert {name: (each["limit_bytes"] >> 20, each["limit_cores"]) for name, each in greedy.items()} == {
        "greedy-ann": (2048, 20),
        "greedy-bob": (4096, 50),
    }
    for each in greedy.values():
        assert each["limit_bytes"] - 4 * MIB <= each["held_bytes"] <= each["limit_bytes"]
        assert each["report"]["refusal"] == "CUDA_ERROR_OUT_OF_MEMORY"
        assert each["report"]["nvml"]["total_bytes"] == each["limit_bytes"]
        assert abs(each["got_cores"] - each["limit_cores"]) <= 3


async def test_the_clusters_half_keeps_its_promises_and_prints_one_document(short_tmp: Path) -> None:
    run = await demo("--only", "cluster", "--output", "json", temporary=short_tmp)
    assert run.status == 0, run.told
    document: dict[str, Any] = json.loads(run.out)
    assert [promise["held"] for promise in document["verdict"]["promises"]] == [True] * 14
    cluster = document["cluster"]
    assert {name: len(uuids) for name, uuids in cluster["nodes"].items()} == {"node-a": 2, "node-b": 2}
    reviewed = {each["pod"]: each for each in cluster["reviewed"]}
    assert reviewed["share"]["stored"]["spec"]["schedulerName"] == "vcuda-scheduler"
    assert "write 100 or 200" in reviewed["typo"]["refusal"]
    hami = next(each for each in cluster["placed"] if each["pod"] == "hami")
    assert [(share["cores"], share["blocks"]) for share in hami["chosen"]] == [(30, 16), (30, 16)]
    assert sorted(share["uuid"] for share in hami["chosen"]) == hami["visible"] == cluster["nodes"]["node-a"]
    assert {run["policy"]: bool(run["large"]) for run in cluster["policies"]}["fragmentation"]
    assert "more cores must become free on GPU 1" in cluster["waited"]["explanation"]
    assert cluster["waited"]["condition"].startswith("0/2 nodes are available: 2 insufficient vcuda-core")
    assert [each["writes"] for each in cluster["survivors"]] == [1, 1, 1, 1]
    assert [(each["size"], each["reserved"], len(each["bound"])) for each in cluster["gangs"]] == [(5, 4, 0), (4, 4, 4)]
    assert "│█│" in run.told, "the show goes to stderr"
    assert not list(short_tmp.iterdir()), "nothing is left behind"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_an_interrupted_demo_cleans_up(short_tmp: Path, number: signal.Signals) -> None:
    process = await start("--only", "cluster", temporary=short_tmp)
    assert process.stdout is not None
    while b"vcuda scheduler starts" not in await process.stdout.readline():
        assert not process.stdout.at_eof()
    process.send_signal(number)
    _, told = await process.communicate()
    assert process.returncode == 130
    assert told.decode().splitlines()[-1] == "demo: interrupted"
    assert not list(short_tmp.iterdir())


async def test_without_the_emulated_driver_it_says_what_to_do(short_tmp: Path) -> None:
    missing = "import pathlib; from sandbox import emulated_gpus; emulated_gpus.BUILT = pathlib.Path('/nonexistent')"
    run = await demo(temporary=short_tmp, changed=missing)
    assert run.status == 1
    assert run.told == "demo: the emulated driver is not built; run scripts/setup\n"


async def test_whoever_reads_may_leave_before_the_end(short_tmp: Path) -> None:
    process = await start("--only", "cluster", temporary=short_tmp)
    assert process.stdout is not None
    await process.stdout.readline()
    process.stdout._transport.close()  # type: ignore[attr-defined]
    assert process.stderr is not None
    told = (await process.stderr.read()).decode()
    assert await process.wait() != 0
    assert "Traceback" not in told
    assert not list(short_tmp.iterdir())
