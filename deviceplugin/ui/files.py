"""The files of the page as HTTP answers.

In: a path, and the entity tag that the browser has. Out: status, headers and body. Every answer has the headers that
keep the page to itself: only its own scripts and styles run, it asks nobody but its own server, no page may frame it,
and no text becomes HTML (Trusted Types). Invariant: only the files of this package that `_KINDS` names can be read.
"""

import hashlib
from functools import cache
from importlib.resources import files

import msgspec

from deviceplugin.serve.messages import HttpResponse, sentence

PATH = "/ui"
_PAGE = "index.html"
_KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
"""`no-cache`: kept, and asked for again by its tag, so that an upgrade of the scheduler is seen at once."""


class _File(msgspec.Struct, frozen=True):
    body: bytes
    kind: str
    tag: str


def is_page(path: str) -> bool:
    return path == PATH or path.startswith(f"{PATH}/")


def answer(path: str, known: str = "") -> HttpResponse:
    """`known` is the header If-None-Match."""
    if path == PATH:  # relative, so that it stays behind the prefix of a proxy
        return HttpResponse(308, headers={**HEADERS, "Location": "ui/"})
    found = _files().get(path.removeprefix(f"{PATH}/") or _PAGE)
    if found is None:
        return sentence(404, "no such file; see /ui/", headers=HEADERS)
    headers = {**HEADERS, "ETag": found.tag}
    if found.tag in (each.strip().removeprefix("W/") for each in known.split(",")):
        return HttpResponse(304, headers=headers)
    return HttpResponse(200, found.body, f"{found.kind}; charset=utf-8", headers)


@cache
def _files() -> dict[str, _File]:
    found: dict[str, _File] = {}
    for each in files(__package__).iterdir():
        kind = _KINDS.get(each.name[each.name.rfind(".") :])
        if kind is not None:
            body = each.read_bytes()
            found[each.name] = _File(body, kind, f'"{hashlib.sha256(body).hexdigest()[:32]}"')
    return found
