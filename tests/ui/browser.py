"""A real browser without a window: Debian's `chromium`, driven by Playwright.

In: a size, a colour scheme. Out: pages whose requests, errors and policy violations are recorded. Where the browser is
missing and cannot be installed the tests are skipped with a sentence; in CI they fail.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal

from playwright.async_api import Browser, ConsoleMessage, Error, Page, Request, ViewportSize, async_playwright

from tests.waiting import PATIENCE_S

_WIDE = (1440, 900)
_ATTEMPTS = 3
_DISTURBED = "ERR_NETWORK_CHANGED"
_ERROR_PAGE = "chrome-error:"  # of the attempt before: it may come while the next one begins
Scheme = Literal["light", "dark"]


@asynccontextmanager
async def launched() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--disable-gpu"])
        try:
            yield browser
        finally:
            await browser.close()


@dataclass
class Visit:
    """One page, and what it did. `problems`: words of the console, errors of scripts, violations of the policy."""

    page: Page
    requests: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    disturbed: bool = False
    longest_ms: int = int(PATIENCE_S * 1000)

    def strangers(self, url: str) -> list[str]:
        """Requests to anybody but the server."""
        return [each for each in self.requests if not each.startswith(f"{url}/")]

    async def text(self, selector: str = "body") -> str:
        return await self.page.inner_text(selector)

    async def open(self, url: str) -> None:
        """Once more where another test changed the machine's network: then the browser drops what is under way."""
        for attempt in range(_ATTEMPTS):
            try:
                await self._load(url, again=attempt > 0)
                await self.page.wait_for_selector("main[aria-busy=false]", timeout=self.longest_ms)
            except Error as error:
                is_disturbed = self.disturbed or _DISTURBED in error.message or _ERROR_PAGE in error.message
                if attempt + 1 == _ATTEMPTS or not is_disturbed:
                    raise
            else:
                return

    async def _load(self, url: str, *, again: bool) -> None:
        """To go to the address where the page is already, with its fragment, loads nothing."""
        if again and self.page.url.startswith(url.partition("#")[0]):
            await self.page.reload()
        else:
            await self.page.goto(url)


@asynccontextmanager
async def visiting(
    browser: Browser,
    *,
    size: tuple[int, int] = _WIDE,
    scheme: Scheme = "light",
    still: bool = True,
    token: str = "good",
) -> AsyncIterator[Visit]:
    context = await browser.new_context(
        ignore_https_errors=True,
        viewport=ViewportSize(width=size[0], height=size[1]),
        color_scheme=scheme,
        reduced_motion="reduce" if still else "no-preference",
        extra_http_headers={"X-Vcuda-Token": token} if token else {},
    )
    page = await context.new_page()
    visit = Visit(page)

    def requested(request: Request) -> None:
        visit.requests.append(request.url)

    page.on("request", requested)

    def said(message: ConsoleMessage) -> None:
        if _DISTURBED in message.text:
            visit.disturbed = True
        else:
            visit.problems.append(f"{message.type}: {message.text}")

    page.on("console", said)
    page.on("pageerror", lambda error: visit.problems.append(str(error)))
    try:
        yield visit
    finally:
        await context.close()
