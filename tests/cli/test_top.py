"""`vcuda top`: one table for pipes, and the page on a real terminal with its keys."""

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import signal
import struct
import sys
import termios
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from deviceplugin.model.cluster_view import ContainerRow, GpuLive, NamespaceRow, ShareLive, ShareRow
from tests.cli.command_runner import kubeconfig, vcuda
from tests.cli.view_server import GIB, SERVICE, Cluster, node, pod, refusal, serving
from tests.waiting import until

PATIENCE_S = 60


def cluster(**changes: bool) -> Cluster:
    return Cluster([node("node-a"), node("node-b", gpus=4)], [pod("llm"), pod("web", "shop", node="node-b")], **changes)  # type: ignore[arg-type]


async def test_nodes_with_what_is_used(tmp_path: Path) -> None:
    scene = cluster()
    result = await vcuda(scene, tmp_path, "top", "--sort-by", "free")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        "NAME     GPUS   FREE    CORES   CORES%   UTIL   IDLE      MEMORY   USED   PODS",
        "node-b      4      3   50/400      13%    35%     15   10/320GiB   9GiB      1",
        "node-a      2      1   50/200      25%    35%     15   10/160GiB   9GiB      1",
    ]
    assert scene.asked[-1] == (f"{SERVICE}/view/nodes", {"live": "1", "limit": "5000"})


async def test_gpus_pods_and_containers(tmp_path: Path) -> None:
    gpus = (await vcuda(cluster(), tmp_path, "top", "gpu", "--sort-by", "used")).stdout.splitlines()
    assert gpus[0].split() == ["NODE", "GPU", "MODEL", "CORES", "UTIL", "IDLE", "MEMORY", "USED", "PODS"]
    assert [line.split()[:2] for line in gpus[1:3]] == [["node-a", "0"], ["node-b", "0"]], "the busy ones come first"
    assert (await vcuda(cluster(), tmp_path, "top", "pods")).stdout.splitlines() == [
        "NAME   NODE     GPU   CORES   USED   IDLE   MEMORY   USED   THROTTLED",
        "llm    node-a   0        50     49    1.4    10GiB   9GiB       12.5s",
    ]
    scene = cluster()
    containers = (await vcuda(scene, tmp_path, "top", "containers", "-A", "-o", "json")).stdout
    asked = {"live": "1", "sort": "node", "stage": "allocated", "limit": "5000"}
    assert scene.asked[-1] == (f"{SERVICE}/view/pods", asked), "pods of one node are on one page"
    assert [each["container"]["name"] for each in json.loads(containers)["items"]] == ["main", "main"]


async def test_idle_shares_come_first_and_namespaces_have_sums(tmp_path: Path) -> None:
    busy, idle = (pod(name, containers=(ContainerRow("main", 50, 40, shares),)) for name, shares in (
        ("busy", (ShareRow("GPU-a", 0, 50, 40, ShareLive(cores_used=60.0)),)),
        ("idle", (ShareRow("GPU-a", 1, 50, 40, ShareLive(cores_used=10.0)), ShareRow("GPU-b", 2, 50, 40, None))),
    ))  # fmt: skip
    scene = Cluster(pods=[busy, idle, pod("unknown", node=None)])
    lines = (await vcuda(scene, tmp_path, "top", "pods", "--sort-by", "idle", "--sum")).stdout.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["idle", "busy", "TOTAL"]
    assert [line.split()[-4] for line in lines[1:]] == ["40", "0", "40"], "of the shares whose use is known"
    scene.namespaces = [NamespaceRow("ml", 2, 150, 80, 70.0, 40.0, GIB, 1.5, 110), NamespaceRow("shop", 1, 50, 40)]
    scene.others = NamespaceRow("", 7, 700, 800, 100.0, 600.0, cores_measured=700)
    result = await vcuda(scene, tmp_path, "top", "ns", "--sort-by", "idle", "--sum")
    assert result.stdout.splitlines() == [
        "NAME       PODS   CORES   USED   IDLE   MEMORY   USED   THROTTLED   NOTE",
        "(others)      7     700    100    600   200GiB      -           -   -",
        "ml            2     150     70     40    20GiB   1GiB        1.5s   use is known of 110 of 150 cores",
        "shop          1      50      -      -    10GiB      -           -   -",
        "TOTAL        10     900    170    640   230GiB   1GiB        1.5s   use is known of 810 of 900 cores",
    ]
    by_name = (await vcuda(scene, tmp_path, "top", "namespaces", "-o", "name")).stdout.split()
    assert by_name == ["namespace/ml", "namespace/shop", "namespace/(others)"]


async def test_the_sum_is_of_nodes_and_gpus_too(tmp_path: Path, subtests: pytest.Subtests) -> None:
    sums: list[tuple[tuple[str, ...], str]] = [
        (("nodes",), "TOTAL 6 4 100/600 20/480GiB 2"),
        (("top",), "TOTAL 6 4 100/600 17% 35% 30 20/480GiB 18GiB 2"),
        (("top", "gpus"), "TOTAL 100/600 35% 30 20/480GiB 18GiB 2"),
        (("pods", "-A"), "TOTAL 100 20GiB"),
        (("top", "containers", "-A"), "TOTAL 100 97 2.8 20GiB 18GiB 25.0s"),
    ]
    for words, line in sums:
        with subtests.test(words=words):
            (*rows, last) = (await vcuda(cluster(), tmp_path, *words, "--sum")).stdout.splitlines()
            assert " ".join(last.split()) == line
            plain = (await vcuda(cluster(), tmp_path, *words)).stdout.splitlines()
            assert [line.split() for line in plain] == [line.split() for line in rows], "the sum was not asked for"
    assert "TOTAL" not in (await vcuda(Cluster([node("a")]), tmp_path, "nodes", "--sum")).stdout, "of one row"


async def test_the_sum_weighs_by_the_gpus_that_report(tmp_path: Path) -> None:
    large = node("large", gpus=8, live=GpuLive(90), cores_used=90.0, cores_idle=0.0, gpus_measured=1)
    small = node("small", live=GpuLive(20), cores_used=40.0, cores_idle=30.5, gpus_measured=2)
    silent = node("silent", gpus=4, live=None, cores_used=None, cores_idle=None, gpus_measured=0)
    scene = Cluster([large, small, silent])
    lines = (await vcuda(scene, tmp_path, "top", "--sort-by", "idle", "--sum")).stdout.splitlines()
    util = lines[0].split().index("UTIL")
    assert [line.split()[util : util + 2] for line in lines[1:]] == [
        ["20%", "31"],
        ["90%", "0"],
        ["-", "-"],
        ["43%", "31"],
    ]


async def test_bars_and_colours_are_for_terminals_alone(tmp_path: Path, subtests: pytest.Subtests) -> None:
    scene = Cluster([node("a", live=GpuLive(95, 9 * GIB, 2)), node("b"), node("c", problem="vcuda agent is down")])
    env: list[tuple[dict[str, str], tuple[str, ...], str]] = [
        (
            {},
            ("\x1b[31m█████████▌\x1b[0m 95%", "\x1b[32m███▌░░░░░░\x1b[0m 35%", "\x1b[31mvcuda agent is down\x1b[0m"),
            "",
        ),
        ({"NO_COLOR": "1"}, ("███▌░░░░░░ 35%",), "\x1b["),
        ({"PYTHONIOENCODING": "ascii"}, ("\x1b[32m####......\x1b[0m 35%",), "█"),
        ({"TERM": "dumb"}, (" 35% ",), "█"),
    ]
    async with serving(scene) as url:
        for variables, seen, unseen in env:
            with subtests.test(variables=variables):
                async with terminal(tmp_path, url, "top", "--once", columns=150, variables=variables) as page:
                    assert await page.ends() == 0
                assert [text for text in seen if text not in page.shown] == [], page.shown
                assert not unseen or unseen not in page.shown
    assert not {"█", "#", "\x1b"} & set((await vcuda(scene, tmp_path, "top")).stdout), "no terminal"


async def test_where_there_is_no_room_columns_are_worth_more_than_bars(tmp_path: Path) -> None:
    async with serving(cluster()) as url:
        for columns, heads in ((75, 6), (60, 6)):
            async with terminal(tmp_path, url, "top", "--once", columns=columns) as page:
                assert await page.ends() == 0
            first = page.shown.splitlines()[0].split()
            assert len(first) >= heads, page.shown
            assert ("░" in page.shown) == (columns == 75)


async def test_an_order_of_another_table_is_one_sentence(tmp_path: Path) -> None:
    result = await vcuda(cluster(), tmp_path, "top", "nodes", "--sort-by", "throttled")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "--sort-by throttled is not an order of nodes; use name, cores, memory, free, used, idle" in result.stderr
    assert result.stderr.endswith("; see vcuda top --help\n")
    assert (await vcuda(cluster(), tmp_path, "top", "cores")).exit_code == 2


@dataclass
class Terminal:
    """What a program has written on its terminal, as it comes."""

    descriptor: int
    process: asyncio.subprocess.Process
    shown: str = ""

    def type(self, keys: str) -> None:
        self.shown = ""
        os.write(self.descriptor, keys.encode())

    async def sees(self, *texts: str) -> str:
        async with asyncio.timeout(PATIENCE_S):
            while not all(text in self.shown for text in texts):
                assert self.process.returncode is None, self.shown
                await asyncio.sleep(0.02)
                with contextlib.suppress(BlockingIOError, OSError):
                    self.shown += os.read(self.descriptor, 1 << 16).decode(errors="replace")
        return self.shown

    async def ends(self) -> int:
        async with asyncio.timeout(PATIENCE_S):
            while self.process.returncode is None:
                with contextlib.suppress(BlockingIOError, OSError):
                    self.shown += os.read(self.descriptor, 1 << 16).decode(errors="replace")
                await asyncio.sleep(0.02)
        return await self.process.wait()


@asynccontextmanager
async def terminal(
    folder: Path, url: str, *args: str, columns: int = 110, lines: int = 12, variables: Mapping[str, str] = {}
) -> AsyncIterator[Terminal]:
    path = kubeconfig(folder / "kubeconfig", url, namespace="research")
    mine, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    os.set_blocking(mine, False)
    inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "deviceplugin", *args),
        stdin=its, stdout=its, stderr=its, start_new_session=True,
        env={**inherited, "TERM": "xterm", "KUBECONFIG": str(path), "PYTHONIOENCODING": "utf-8", **variables},
    )  # fmt: skip
    try:
        yield Terminal(mine, process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        os.close(mine)
        os.close(its)


async def test_the_page_has_the_keys_of_top_and_leaves_the_terminal_as_it_was(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for last in ["q", "SIGINT", "SIGTERM"]:
        with subtests.test(last=last):
            scene = cluster()
            scene.namespaces = [NamespaceRow("research", 1, 50, 40, 48.6, 1.4)]
            async with serving(scene) as url, terminal(tmp_path, url, "top", "--interval", "1", columns=80) as page:
                before = termios.tcgetattr(page.descriptor)
                await page.sees("nodes: 2   by name", "node-b", "q quit   ? help", "\x1b[?1049h")
                page.type("F")
                await page.sees("by free")
                page.type("R")
                await page.sees("by free, reversed")
                page.type("4")
                await page.sees("gpus: 6   by name", "UTIL")
                page.type("3")
                await page.sees("pods in research: 1   by name", "THROTTLED")
                page.type("2")
                await page.sees("namespaces: 1   by name", "research", "IDLE")
                page.type("I")
                await page.sees("by idle")
                page.type("3T")
                await page.sees("pods in research: 1   by throttled")
                page.type("?")
                await page.sees("sort by name, cores", "sort by used-memory, throttled, node", "quit")
                page.type("?")
                await page.sees("by throttled")
                scene.answers[f"{SERVICE}/view/pods"] = refusal(503, "no endpoints available")
                await page.sees("vcuda: no replica of the scheduler answers")
                scene.answers.clear()
                page.type(" ")
                await page.sees("llm", "q quit   ? help")
                if last.startswith("SIG"):
                    page.process.send_signal(signal.Signals[last])
                else:
                    page.type(last)
                assert await page.ends() == 0
                assert "\x1b[?1049l" in page.shown
                assert "Traceback" not in page.shown
                assert termios.tcgetattr(page.descriptor) == before


async def test_a_text_after_a_slash_narrows_the_table_and_its_letters_are_no_keys(tmp_path: Path) -> None:
    scene = Cluster([node("node-a")], [pod("quick"), pod("jar")])
    async with serving(scene) as url, terminal(tmp_path, url, "top", "pods", "--interval", "3600") as page:
        await page.sees("pods in research: 2   by name", "quick", "q quit")
        page.type("/qx")
        await page.sees("/qx")
        page.type("\x7fui\n")
        await page.sees("pods in research match qui: 1", "quick", "q quit")
        assert scene.asked[-1][1]["name"] == "qui"
        page.type("/jar\x1b")
        await page.sees("pods in research match qui: 1", "q quit")
        page.type("\x1b")
        await page.sees("pods in research: 2   by name", "jar")
        page.type("2")
        await page.sees("namespaces: 0")
        page.type("/te*\r")
        await page.sees("namespaces in te*: 0")
        assert scene.asked[-1][1]["namespace"] == "te*"
        page.type("q")
        assert await page.ends() == 0


async def test_a_long_page_scrolls_and_shows_the_first_of_a_large_cluster(tmp_path: Path) -> None:
    scene = Cluster([node(f"node-{at:04}") for at in range(700)])
    async with serving(scene) as url, terminal(tmp_path, url, "top", "--interval", "3600") as page:
        await page.sees("nodes: 250, of 250 of 700", "SHOWN ", "node-0007", " 35% ")
        asked = {"live": "1", "sort": "name", "order": "asc", "limit": "250"}
        await until(lambda: scene.asked[-1] == (f"{SERVICE}/view/nodes", asked))  # the first frame is not live
        assert "node-0008" not in page.shown
        page.type("\x1b[B")
        await page.sees("SHOWN ", "node-0008")
        page.type("\x1b[F")
        await page.sees("node-0249")
        page.type("\x1b[H")
        await page.sees("node-0000")
        page.type("q")
        assert await page.ends() == 0


async def test_the_first_failure_ends_the_command_and_json_or_a_pipe_is_never_a_page(tmp_path: Path) -> None:
    scene = cluster()
    async with serving(scene) as url:
        async with terminal(tmp_path, url, "top", "--once") as page:
            assert await page.ends() == 0
            assert "\x1b[?1049h" not in page.shown
            assert "node-a" in page.shown
        scene.answers[f"{SERVICE}/view/nodes"] = refusal(503, "no endpoints available")
        async with terminal(tmp_path, url, "top") as page:
            assert await page.ends() == 1
            assert "vcuda: no replica of the scheduler answers" in page.shown
            assert "\x1b[?1049h" not in page.shown


async def test_what_is_held_is_shown_at_once_and_what_is_used_when_it_comes(tmp_path: Path) -> None:
    scene = cluster()
    scene.agents_answer.clear()
    words = ("top", "--sort-by", "used", "--interval", "3600")
    async with serving(scene) as url, terminal(tmp_path, url, *words) as page:
        shown = await page.sees("by used", "asking the agents ...", "node-b", "50/400", "q quit")
        views = [query for path, query in scene.asked if "/view/" in path]
        assert views[0] == {"sort": "name", "order": "asc", "limit": "250"}
        page.shown = ""
        scene.agents_answer.set()
        shown = await page.sees("node-b", " 35% ", "q quit")
        assert "asking" not in shown
        assert scene.asked[-1][1] == {"live": "1", "sort": "used", "order": "desc", "limit": "250"}
        page.type("q")
        assert await page.ends() == 0


async def test_the_page_is_made_again_while_keys_come_without_pause(tmp_path: Path) -> None:
    scene = cluster()
    async with serving(scene) as url, terminal(tmp_path, url, "top", "--interval", "1") as page:
        await page.sees("nodes: 2   by name", " 35% ")
        before = len(scene.asked)
        async with asyncio.timeout(PATIENCE_S):
            while len(scene.asked) < before + 2:
                page.type("j")
                await page.sees("q quit")
                await asyncio.sleep(0.1)


async def test_the_picture_of_a_node_has_the_colours_of_top(tmp_path: Path) -> None:
    scene = Cluster([node("node-a", problem="vcuda agent is down")])
    async with serving(scene) as url:
        for columns, cells, variables in ((110, 10, {}), (80, 8, {}), (70, 0, {}), (110, 10, {"NO_COLOR": "1"})):
            async with terminal(tmp_path, url, "node", "node-a", columns=columns, variables=variables) as page:
                assert await page.ends() == 0
            for text in ("\x1b[31m✗ unavailable: vcuda agent is down\x1b[0m", "\x1b[32m35% busy\x1b[0m"):
                assert (text in page.shown) == (not variables), page.shown
            bar = "█" * (cells // 2) + "░" * (cells // 2)
            coloured = f" \x1b[32m{bar}\x1b[0m" if cells and not variables else f" {bar}" * bool(cells)
            assert f"cores{coloured}  50" in page.shown, "bars give way to numbers"


async def test_a_node_is_watched_until_q(tmp_path: Path) -> None:
    async with serving(cluster()) as url, terminal(tmp_path, url, "node", "node-a", "--watch") as page:
        await page.sees("NUMA node 0", "research/llm (main)", "q quit")
        page.type("q")
        assert await page.ends() == 0
