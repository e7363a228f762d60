"""Makes the pictures of the page for the documentation: `scripts/screenshots` runs it.

In: the made-up cluster of `cluster`. Out: PNG files in docs/pictures, each below 150 KB, and in pictured.sha256 the
hash of the page that they show.
"""

import asyncio
import hashlib
import subprocess
from pathlib import Path

from playwright.async_api import Browser

from sandbox.cluster.prerequisites import SCRIPTS
from tests.ui.browser import Scheme, launched, visiting
from tests.ui.cluster import large, serving, usual

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "pictures"
PICTURED = Path(__file__).with_name("pictured.sha256")
PICTURES: tuple[tuple[str, str, Scheme, tuple[int, int]], ...] = (
    ("page-nodes-light.png", "nodes", "light", (1280, 760)),
    ("page-node-dark.png", "nodes/gpu-h100-1", "dark", (1280, 700)),
    ("page-namespaces-light.png", "namespaces?sort=idle:desc", "light", (1280, 640)),
    ("page-pod-dark.png", "pods/serving/chat-7b-00", "dark", (1280, 700)),
    ("page-pending-light.png", "pending", "light", (1280, 560)),
    ("page-events-dark.png", "events", "dark", (1280, 640)),
    ("page-pods-narrow.png", "pods", "light", (360, 740)),
    ("page-240-nodes-light.png", "nodes?sort=idle:desc", "light", (1280, 760)),
)
_MADE = {"page-240-nodes-light.png": large}
"""Of the others: `usual`."""
_SERVED = (".js", ".css", ".html", ".svg")


def page_hash() -> str:
    """Of all that a browser gets of the page, and of what is pictured."""
    files = [path for path in sorted((ROOT / "deviceplugin" / "ui").iterdir()) if path.suffix in _SERVED]
    hashes = [f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in files]
    return hashlib.sha256("\n".join([*hashes, repr(PICTURES)]).encode()).hexdigest()


async def _take(browser: Browser, url: str, picture: tuple[str, str, Scheme, tuple[int, int]]) -> None:
    name, where, scheme, size = picture
    async with visiting(browser, scheme=scheme, size=size) as visit:
        await visit.open(f"{url}/ui/#/{where}")
        await visit.page.wait_for_load_state("networkidle")
        await visit.page.screenshot(path=FOLDER / name)


async def main() -> None:
    subprocess.run([SCRIPTS / "packages", "chromium=chromium"], check=True)
    FOLDER.mkdir(exist_ok=True)
    async with launched() as browser:
        for picture in PICTURES:
            made = _MADE.get(picture[0], usual)()
            async with serving(made) as url:
                await made.sample_as_long_ago(15)
                await _take(browser, url, picture)
            print(FOLDER / picture[0], (FOLDER / picture[0]).stat().st_size)
    PICTURED.write_text(f"{page_hash()}\n")


if __name__ == "__main__":
    asyncio.run(main())
