"""`vcuda ui` as a process: its page in a browser, and who else can ask it nothing."""

import asyncio
from collections.abc import Iterator
from urllib.parse import urlsplit

import aiohttp
import pytest
from click.testing import CliRunner
from playwright.async_api import expect

from deviceplugin.cli import main
from tests.own_network import own_network
from tests.ui.browser import launched, visiting
from tests.ui.cluster import serving, usual
from tests.ui.command import PROGRAM, started

WORKING = "/view/cluster"


def of(scheduler: str) -> tuple[str, str]:
    return f"--url={scheduler}", "--insecure"


@pytest.fixture
def apart(chromium: None) -> Iterator[None]:
    with own_network():
        yield


@pytest.mark.usefixtures("apart")
async def test_the_page_shows_the_cluster_with_the_names_that_the_caller_may_read() -> None:
    async with serving(usual()) as scheduler, started(*of(scheduler), token="good") as address, launched() as browser:
        async with visiting(browser) as visit:
            await visit.open(address)
            await expect(visit.page.locator(".nodes > li")).to_have_count(8)
            assert urlsplit(visit.page.url).fragment == "/nodes", "the key is not left in the address"
            await visit.open(visit.page.url.replace("#/nodes", "#/pods"))
            await expect(visit.page.locator("tbody")).to_contain_text("training/llama-ft-0")
            assert visit.strangers(f"http://{urlsplit(address).netloc}") == []
            assert visit.problems == []
        async with visiting(browser) as other:
            await other.open(f"http://{urlsplit(address).netloc}/ui/")
            await expect(other.page.locator("#trouble")).to_contain_text(
                "Open the page by the address that vcuda ui prints"
            )


async def test_nobody_else_on_this_machine_and_no_other_page_can_ask_it() -> None:
    async with (
        serving(usual()) as scheduler,
        started(*of(scheduler), token="good") as address,
        aiohttp.ClientSession() as session,
    ):
        url = f"http://{urlsplit(address).netloc}"

        async def ask(path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
            async with session.request(method, url + path, headers=headers, allow_redirects=False) as answer:
                return answer.status, await answer.text()

        assert (await ask("/open/guess"))[0] == 403
        async with session.get(address, allow_redirects=False) as answer:
            key = answer.headers["Location"].removeprefix("/ui/#key=")
            assert (answer.status, answer.headers["Cache-Control"]) == (303, "no-store")
        assert (await ask(urlsplit(address).path))[0] == 403, "the address is good once"
        status, text = await ask(WORKING, **{"X-Vcuda-Key": key})
        assert status == 200
        assert '"nodes":8' in text
        status, text = await ask("/explain?pod=research/sweep-11", **{"X-Vcuda-Key": key})
        assert status == 200
        assert "the pod fits on none of the 8 nodes" in text
        assert (await ask("/view/nodes?limit=x", **{"X-Vcuda-Key": key}))[0] == 400
        for path, method, headers, expected in (
            (WORKING, "GET", {}, 401),
            (WORKING, "GET", {"X-Vcuda-Key": key[:-1]}, 401),
            (WORKING, "GET", {"X-Vcuda-Key": key, "Host": "evil.example:80"}, 403),
            (WORKING, "POST", {"X-Vcuda-Key": key}, 405),
            (WORKING, "OPTIONS", {"Origin": "https://evil.example"}, 405),
            ("/metrics", "GET", {"X-Vcuda-Key": key}, 404),
            ("/filter", "GET", {"X-Vcuda-Key": key}, 404),
            ("/ui/../view/cluster", "GET", {}, 401),
        ):
            status, text = await ask(path, method, **headers)
            assert (status, '"error"' in text) == (expected, expected != 405), (path, method, headers)
        async with session.get(f"{url}/ui/") as answer:
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
            assert not [name for name in answer.headers if name.startswith("Access-Control")]


def test_without_a_scheduler_it_says_so_and_serves_nothing() -> None:
    done = CliRunner().invoke(main, ["ui", "--no-browser", "--url=https://127.0.0.1:9", "--insecure"])
    assert (done.exit_code, done.stdout) == (1, "")
    assert "127.0.0.1:9 cannot be reached" in done.stderr


async def test_a_port_that_is_taken_is_named(unused_tcp_port: int) -> None:
    async with serving(usual()) as scheduler, started(*of(scheduler), f"--listen-port={unused_tcp_port}") as address:
        assert urlsplit(address).port == unused_tcp_port
        words = ["ui", "--no-browser", f"--listen-port={unused_tcp_port}", f"--url={scheduler}", "--insecure"]
        other = await asyncio.create_subprocess_exec(str(PROGRAM), *words, stderr=asyncio.subprocess.PIPE)
        _, said = await other.communicate()
    assert other.returncode == 1
    assert said.startswith(f"vcuda: --listen-port: port {unused_tcp_port} on 127.0.0.1 is in use".encode()), said
    assert len(said.splitlines()) == 1


async def test_a_scheduler_that_goes_away_is_a_sentence_and_no_end() -> None:
    async with serving(usual()) as scheduler:
        inner = started(*of(scheduler), "--request-timeout=2s")
        address = await inner.__aenter__()
    async with aiohttp.ClientSession() as session:
        async with session.get(address, allow_redirects=False) as answer:
            key = answer.headers["Location"].removeprefix("/ui/#key=")
        async with session.get(f"http://{urlsplit(address).netloc}{WORKING}", headers={"X-Vcuda-Key": key}) as answer:
            assert answer.status == 502
            assert "cannot be reached" in (await answer.json())["error"]
    await inner.__aexit__(None, None, None)


@pytest.mark.parametrize("words", [["ui", "--listen-port", "x"], ["ui", "--listen-port", "70000"]])
def test_a_wrong_port_is_clicks(words: list[str]) -> None:
    assert CliRunner().invoke(main, words).exit_code == 2
