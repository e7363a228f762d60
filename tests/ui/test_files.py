"""The page's files over HTTP: what every answer carries, what may be kept, and what they may say."""

import re
from importlib.resources import files as resources

from deviceplugin.ui import files
from tests.cluster.http.scene import serving

FILES = {each.name: each.read_text() for each in resources("deviceplugin.ui").iterdir() if each.is_file()}
MODULES = sorted(name for name in FILES if name.endswith(".js"))


async def test_every_file_is_served_with_the_headers_that_keep_the_page_to_itself() -> None:
    async with serving() as scene:
        for name in ("", *(name for name in FILES if not name.endswith(".py"))):
            async with scene.session.get(f"{scene.url}/ui/{name}") as answer:
                assert answer.status == 200, name
                assert {key: answer.headers[key] for key in files.HEADERS} == files.HEADERS
                assert "default-src 'none'; script-src 'self';" in answer.headers["Content-Security-Policy"]
                assert "unsafe" not in answer.headers["Content-Security-Policy"]


async def test_a_browser_that_has_a_file_gets_it_once() -> None:
    async with serving() as scene:
        async with scene.session.get(f"{scene.url}/ui/main.js") as first:
            tag = first.headers["ETag"]
        async with scene.session.get(f"{scene.url}/ui/main.js", headers={"If-None-Match": f'"x", W/{tag}'}) as again:
            assert (again.status, await again.read(), again.headers["ETag"]) == (304, b"", tag)


async def test_the_address_without_a_slash_leads_to_the_page_behind_any_prefix() -> None:
    async with serving() as scene, scene.session.get(f"{scene.url}/ui", allow_redirects=False) as answer:
        assert (answer.status, answer.headers["Location"]) == (308, "ui/")


async def test_nothing_else_is_served() -> None:
    paths = ("files.py", "__init__.py", "../errors.py", "%2e%2e/errors.py", "x", "main.js/", "//")
    assert [path for path in paths if files.answer(f"/ui/{path}").status != 404] == []
    async with serving() as scene:
        for path in paths:
            async with scene.session.get(f"{scene.url}/ui/{path}") as answer:
                assert answer.status == 404, path


async def test_it_is_read_only() -> None:
    async with serving() as scene, scene.session.post(f"{scene.url}/ui/") as answer:
        assert answer.status == 405


def test_a_module_says_what_it_is_for_and_is_short() -> None:
    for name in MODULES:
        text = FILES[name]
        comment = text[: text.index("*/")]
        assert text.startswith("/*"), name
        assert all(word in comment for word in ("In:", "Out:", "Invariant:")), name
        assert len(text.splitlines()) < 400, name
        assert max(map(len, text.splitlines())) <= 200, name


def test_no_text_can_become_html_and_no_address_is_absolute() -> None:
    script = "\n".join(FILES[name] for name in MODULES)
    assert (
        re.findall(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|new Function|localStorage", script) == []
    )
    everything = script + FILES["index.html"] + FILES["style.css"]
    assert re.findall(r"""(?:src|href)=["']/|https?://|url\(""", everything.replace("http://www.w3.org", "")) == []
    assert re.findall(r"<script(?![^>]*src)|\son\w+=|\sstyle=", FILES["index.html"]) == []
