"""How fast the scheduler's page `/ui` is there in a large cluster, and what it takes of the browser's memory.

A real headless Chromium opens it from `vcuda scheduler`, with pods on the GPUs, waiting pods, and agents that say what
is used. Output (keys of `--output json`): `rows_s` and `live_s`, medians over the rounds from the navigation, by an
empty cache, until fifty nodes with their GPUs are painted, and until what is used stands there as well. Of the renderer
process, in MiB: `open_private_mib`, while the nodes stay open and are refreshed; `tour_private_mib` and `tour_pss_mib`,
the most after any part of a tour through pages and views, and `collected_private_mib`, the same after Chromium was told
to collect what is not used any more; `heap_mib`, JavaScript's part of the most. Chromium must be installed.

    python -m benchmarks.page [--nodes N] [--waiting N] [--rounds N] [--output json] [--short]
"""

import asyncio
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from playwright.async_api import Browser, Page, async_playwright

from benchmarks.cluster.agents import agent_servers
from benchmarks.cluster.measured import measured_scheduler
from benchmarks.cluster.stub import stub_server
from benchmarks.command import BenchmarkError, ends_in_one_sentence, options, scratch_folder, show
from sandbox.apiserver.kubeconfig import write_kubeconfig
from sandbox.apiserver.reviews import VIEWER, token_of

PODS_A_NODE = 8
SHORT = (60, 5, 1)
PROGRAM = "/usr/bin/chromium"
PAGES = 20
SETTLED_MS = 1_000
OPEN_MS = 60_000
_PAINTED = """selector => new Promise(done => {
  const look = () => document.querySelectorAll(selector).length >= LEAST
    ? requestAnimationFrame(() => setTimeout(() => done(performance.now() / 1000)))
    : setTimeout(look, 2);
  look();
})"""
ROWS = _PAINTED.replace("LEAST", "50")
LIVE = _PAINTED.replace("LEAST", "1")


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--nodes", type=int, default=5_000, help="nodes of eight GPUs each (default: %(default)s)")
    parser.add_argument("--waiting", type=int, default=1_000, help="pods that wait (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=9, help="of loading the page (default: %(default)s)")
    given = parser.parse_args()
    if given.short:
        given.nodes, given.waiting, given.rounds = SHORT
    open_ms = 0 if given.short else OPEN_MS
    with scratch_folder() as folder:
        show(asyncio.run(measure(folder, given.nodes, given.waiting, given.rounds, open_ms)), given.output)


async def measure(folder: Path, nodes: int, waiting: int, rounds: int, open_ms: int) -> dict[str, float]:
    pods = nodes * PODS_A_NODE
    with agent_servers(nodes, pods) as port, stub_server(nodes, pods, port) as (stub, _):
        kubeconfig = write_kubeconfig(folder / "kubeconfig", stub)
        async with async_playwright() as playwright:
            _make_waiting(stub, waiting)
            scheduler = measured_scheduler(folder, kubeconfig, core=None)
            server = await asyncio.to_thread(scheduler.__enter__)
            try:
                browser = await playwright.chromium.launch(executable_path=PROGRAM, args=["--disable-gpu"])
                url = f"https://127.0.0.1:{server.port}/ui/"
                times = [await _load(browser, url) for _ in range(rounds)]
                memory = await _remembered(browser, url, open_ms)
                await browser.close()
            finally:
                await asyncio.to_thread(scheduler.__exit__, None, None, None)
    rows, live = zip(*times, strict=True)
    return {"nodes": nodes, "pods": pods, "waiting": waiting, "rows_s": median(rows), "live_s": median(live), **memory}


def _make_waiting(stub: str, count: int) -> None:
    asked = urllib.request.Request(f"{stub}/bench/pods?from=0&to={count}", method="POST")
    urllib.request.urlopen(asked).close()


async def _load(browser: Browser, url: str) -> tuple[float, float]:
    page = await _opened(browser, url)
    try:
        return await page.evaluate(ROWS, ".nodes > li"), await page.evaluate(LIVE, ".nodes .used")
    finally:
        await page.context.close()


async def _opened(browser: Browser, url: str) -> Page:
    context = await browser.new_context(
        ignore_https_errors=True,
        viewport={"width": 1440, "height": 900},
        extra_http_headers={"X-Vcuda-Token": token_of(VIEWER, "vcuda")},
    )
    page = await context.new_page()
    await page.goto(url, wait_until="commit")
    return page


async def _remembered(browser: Browser, url: str, open_ms: int) -> dict[str, float]:
    page = await _opened(browser, "about:blank")
    before = await _renderers(browser)
    await page.goto(url)
    await page.evaluate(LIVE, ".nodes .used")
    after = await _renderers(browser)
    renderer = max(after, key=lambda pid: after[pid].pss - before.get(pid, Memory()).pss)
    await page.wait_for_timeout(open_ms)
    still = _memory_of(renderer)
    session = await page.context.new_cdp_session(page)
    most, heap = still, 0.0
    async for _ in _tour(page):
        most = max(most, _memory_of(renderer))
        heap = max(heap, float((await session.send("Runtime.getHeapUsage"))["usedSize"]) / (1 << 20))
    await session.send("HeapProfiler.collectGarbage")
    await page.wait_for_timeout(SETTLED_MS)
    return {
        "open_private_mib": still.private,
        "tour_private_mib": most.private,
        "tour_pss_mib": most.pss,
        "collected_private_mib": _memory_of(renderer).private,
        "heap_mib": heap,
    }


async def _tour(page: Page) -> AsyncIterator[None]:
    """Pages of nodes, then every other view; stops after each part."""
    for _ in range(PAGES):
        await page.keyboard.press("n")
        await page.wait_for_load_state("networkidle")
    yield
    for key, selector in (("2", "tbody tr"), ("3", "tbody tr"), ("4", "tbody tr"), ("5", "h1"), ("1", ".nodes > li")):
        await page.keyboard.press(key)
        await page.evaluate(LIVE, selector)
        await page.wait_for_load_state("networkidle")
        yield
    await page.click(".nodes .name")
    await page.evaluate(LIVE, ".gpu-card")
    await page.wait_for_load_state("networkidle")
    yield


@dataclass(frozen=True, slots=True, order=True)
class Memory:
    """Of one process, in MiB."""

    private: float = 0.0
    pss: float = 0.0


async def _renderers(browser: Browser) -> dict[int, Memory]:
    session = await browser.new_browser_cdp_session()
    processes = (await session.send("SystemInfo.getProcessInfo"))["processInfo"]
    await session.detach()
    found = {int(each["id"]): _memory_of(int(each["id"])) for each in processes if each["type"] == "renderer"}
    if not found:
        raise BenchmarkError("Chromium names no renderer process")
    return found


def _memory_of(pid: int) -> Memory:
    sizes: dict[str, float] = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, size, *_ = line.split()
        sizes[name.rstrip(":")] = int(size) / 1024
    return Memory(sizes["Private_Clean"] + sizes["Private_Dirty"], sizes["Pss"])


if __name__ == "__main__":
    ends_in_one_sentence(main)
