"""`scripts/demo` as a stranger runs it: the play itself, its document, its manners."""

import asyncio
import json
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
MIB = 1 << 20


@dataclass(frozen=True)
class Run:
    """How it ended and what it said."""

    status: int
    out: str
    told: str


async def start(*arguments: str, temporary: Path) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "scripts.demonstration", *arguments),
        cwd=REPOSITORY,
        env=os.environ | {"TMPDIR": str(temporary), "GRPC_VERBOSITY": "NONE"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def demo(*arguments: str, temporary: Path) -> Run:
    process = await start(*arguments, temporary=temporary)
    out, told = await process.communicate()
    assert process.returncode is not None
    return Run(process.returncode, out.decode(), told.decode())


async def test_the_play_keeps_its_promises_and_prints_one_document(short_tmp: Path) -> None:
    run = await demo("--output", "json", temporary=short_tmp)
    assert run.status == 0, run.told
    document: dict[str, Any] = json.loads(run.out)
    assert document["verdict"]["ok"]
    assert [promise["held"] for promise in document["verdict"]["promises"]] == [True] * 10
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
    assert "asked" in run.told
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


async def test_an_interrupted_demo_cleans_up(short_tmp: Path) -> None:
    process = await start(temporary=short_tmp)
    assert process.stdout is not None
    while b"on offer" not in await process.stdout.readline():
        assert not process.stdout.at_eof()
    process.send_signal(signal.SIGTERM)
    _, told = await process.communicate()
    assert process.returncode == 130
    assert told.decode().splitlines()[-1] == "demo: interrupted"
    assert not list(short_tmp.iterdir())


async def test_without_the_emulated_driver_it_says_what_to_do() -> None:
    program = (
        "import pathlib, sys; from scripts.demonstration import __main__, stage; "
        "stage.DRIVER = pathlib.Path('/nonexistent'); sys.exit(__main__.main())"
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program), cwd=REPOSITORY, stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    _, told = await process.communicate()
    assert process.returncode == 1
    assert told.decode() == "demo: the emulated driver is not built; run scripts/setup\n"
