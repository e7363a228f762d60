"""`scripts/demo`, by which README.md and docs/first-hour.md begin: both shows keep their promises."""

import asyncio
import re
import signal
from pathlib import Path

import aiohttp
import pytest

from tests.scripts.demo import demo, start

NODE_TABLES = (
    r"notebook-ann +30 cores, 8 GiB +GPU 0 ",
    r"notebook-bob +20 cores, 4 GiB +GPU 0 ",
    r"pipeline +10\+25 cores, 12 GiB +GPU 1 ",
    r"pretrain +4 GPUs +GPUs 3, 4, 5, 6 ",
    r"typo was refused: .*\b150\b",
    r"greedy-ann +2048 MiB +2048 MiB +20\d\d MiB +then CUDA_ERROR_OUT_OF_MEMORY",
    r"greedy-bob +4096 MiB +4096 MiB +40\d\d MiB +then CUDA_ERROR_OUT_OF_MEMORY",
)
CLUSTER_TABLES = (
    r"share asks for tencent.com/vcuda-core: 20, tencent.com/vcuda-memory-mib: 2048$",
    r"hami asks for nvidia.com/gpu: 2, nvidia.com/gpumem: 4096, nvidia.com/gpucores: 30$",
    r"is stored with tencent.com/vcuda-gpus: main=2, tencent.com/vcuda-core: 60,",
    r"typo asks for 150 cores and was refused: .*\n.* write 100 or 200$",
    r"notebook +node-a +25 cores of (GPU-\w{8}) +\1$",
    r"show: 0/2 nodes are available: 2 insufficient",
    r"fix: 5 more cores must become free on GPU 1$",
    r"rack-2, 8 GPUs +4 +½ ½ 4$",
    r"then 8 GPUs +Pending +Pending +runs on rack-2$",
    r"web-4 +node-b +node-b +1$",
    r"5 +4 +4 +0 +0$",
    r"4 +4 +4 +4 +0$",
    r"5 of 60 cores +0 +0$",
    r"4 of 60 cores and 4 of 40 cores +8 +0$",
    r"4 of 100 cores; its scheduler dies +0 +0, [2-9]\.\d s later$",
    r"4 of 100 cores; a scheduler starts +4 +0$",
    r"fragmentation +94\.\d % +98\.\d %$",
)


@pytest.mark.parametrize(("show", "tables", "checks"), [("node", NODE_TABLES, 10), ("cluster", CLUSTER_TABLES, 17)])
async def test_a_show_keeps_its_promises(short_tmp: Path, show: str, tables: tuple[str, ...], checks: int) -> None:
    run = await demo("--only", show, temporary=short_tmp)
    assert (run.status, run.told) == (0, "")
    assert len(run.checks("✔")) == checks, run.out
    assert f"\n{checks} of {checks} checks passed, in " in run.out
    for line in tables:
        assert re.search(line, run.out, re.MULTILINE), f"{line} is not in:\n{run.out}"
    assert not re.search(r" $|.{101}", run.out, re.MULTILINE), "no line is wide or ends with blanks"
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


async def test_keep_leaves_the_files_and_says_where(short_tmp: Path) -> None:
    changed = "from scripts.demonstration import node_steps\nasync def fail(self): raise node_steps.DemoError('no')\n"
    changed += "node_steps._NodeRun.start_agent = fail"
    run = await demo("--only", "node", "--keep", temporary=short_tmp, changed=changed)
    assert (run.status, run.told) == (1, "demo: no\n")
    (kept,) = short_tmp.iterdir()
    assert f"files and logs: {kept}" in run.out


async def test_the_reader_may_leave_before_the_end(short_tmp: Path) -> None:
    process = await start("--only", "cluster", temporary=short_tmp)
    assert process.stdout is not None
    await process.stdout.readline()
    process.stdout._transport.close()  # type: ignore[attr-defined]
    assert process.stderr is not None
    told = (await process.stderr.read()).decode()
    assert await process.wait() != 0
    assert "Traceback" not in told
    assert not list(short_tmp.iterdir())


async def test_the_page_shows_the_demos_cluster_until_ctrl_c(short_tmp: Path) -> None:
    process = await start("--ui", temporary=short_tmp)
    assert process.stdout is not None
    said = ""
    while "Press Ctrl-C to end." not in said:
        line = (await process.stdout.readline()).decode()
        assert line, said
        said += line
    (address,) = re.findall(r"Open (http://\S+)$", said, re.MULTILINE)
    async with aiohttp.ClientSession() as session:
        async with session.get(address, allow_redirects=False) as opened:
            key = opened.headers["Location"].partition("#key=")[2]
        base, headers = address.partition("/open/")[0], {"X-Vcuda-Key": key}
        async with session.get(f"{base}/view/cluster?live=1", headers=headers) as answer:
            found = await answer.json()
        assert (found["nodes"], found["gpus"], found["pods_pending"]) == (2, 4, 1)
        assert found["gpus_measured"] == 4, "its agents are asked"
        while not found["cores_used"]:
            await asyncio.sleep(0.5)
            async with session.get(f"{base}/view/cluster?live=1", headers=headers) as answer:
                found = await answer.json()
        assert found["cores_used"] < found["cores_allocated"], "two pods are busy, and the others idle"
        async with session.get(f"{base}/view/pods", headers=headers) as answer:
            names = [row["pod"] for row in (await answer.json())["items"]]
    process.send_signal(signal.SIGINT)
    _, told = await process.communicate()
    assert (process.returncode, told.decode()) == (0, "")
    assert {"share", "hami", "llm"} <= set(names)
    assert not list(short_tmp.iterdir())
