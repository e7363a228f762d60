"""What a server of vcuda hears and says: requests, routes, answers.

In: the head and the whole body of a request. Out: an `HttpResponse`, or an `HttpError` with a status and one sentence.
Not here: sockets (`connection`), and which paths there are.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qsl, unquote

import msgspec
import structlog

from deviceplugin.errors import CallerGoneError, ParseError, VcudaError

log = structlog.get_logger("vcuda.http")
TEXT, JSON = "text/plain; charset=utf-8", "application/json"
READING = ("GET", "HEAD")
GONE = "disconnected"
"""The outcome if the client left before it had its answer."""
_MOST_PARAMETERS = 64


class HttpError(Exception):
    """An answer with an error status, after which the connection is closed; `outcome` is a label of metrics."""

    def __init__(self, status: int, outcome: str, sentence: str, **headers: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.outcome = outcome
        self.sentence = sentence
        self.headers = headers


class HttpRequest(msgspec.Struct, dict=True):
    """`target` as it came; of `headers` the first of each name, in lower case. `peer`: the other end's address.

    `names`: of its verified certificate. `has_gone` is true once nobody waits for the answer. `path` is decoded,
    without the query.
    """

    method: str
    target: bytes
    headers: Mapping[bytes, bytes]
    peer: str
    names: frozenset[str]
    has_gone: Callable[[], bool]
    body: bytes = b""
    path: str = ""

    def __post_init__(self) -> None:
        raw = self.raw_path
        self.path = unquote(raw) if "%" in raw else raw

    @property
    def raw_path(self) -> str:
        return self.target.partition(b"?")[0].decode("latin-1")

    @cached_property
    def query(self) -> Mapping[str, str]:
        """The first value of each parameter; HttpError for more than anybody asks with."""
        text = self.target.partition(b"?")[2].partition(b"#")[0].decode("latin-1")
        try:
            pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_PARAMETERS)
        except ValueError:
            raise HttpError(400, "malformed", f"the query has more than {_MOST_PARAMETERS} parameters") from None
        return MappingProxyType(dict(reversed(pairs)))

    def header(self, name: str) -> str:
        """Empty without one of that name."""
        return self.headers.get(name.lower().encode(), b"").decode("latin-1")


class HttpResponse(msgspec.Struct, frozen=True):
    """`closes`: the connection cannot be used again."""

    status: int = 200
    body: bytes = b""
    content_type: str = TEXT
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    closes: bool = False


Answer = Callable[[HttpRequest], Awaitable[HttpResponse]]


def _nothing(_: HttpError) -> None:
    """Nobody counts it."""


def _everybody(_: HttpRequest) -> None:
    """Nobody is refused."""


class Route(msgspec.Struct, frozen=True):
    """`answer` gets the whole request. `largest`: bytes of a body; 0: the method has none.

    `check` raises an HttpError for a caller whose body is not even read; the request is without its body then.
    `refused` is called if a body was not read. `instead`: what to send instead of a larger body. `is_trusted`: only
    known callers are answered, so they are bounded together and not by peer. `counts`: an answer shows that the
    connection is worth keeping.
    """

    answer: Answer
    methods: tuple[str, ...] = READING
    largest: int = 0
    instead: str = "send less"
    check: Callable[[HttpRequest], None] = _everybody
    refused: Callable[[HttpError], None] = _nothing
    is_trusted: bool = False
    counts: bool = True


def sentence(status: int, text: str, **how: Any) -> HttpResponse:  # noqa: ANN401 - fields of HttpResponse
    return HttpResponse(status, f"{text}\n".encode(), **how)


def refusal(error: HttpError) -> HttpResponse:
    """The rest of the request may not have been read."""
    return sentence(error.status, error.sentence, headers=error.headers, closes=True)


def failure(error: Exception, *, path: str, bug: str) -> tuple[HttpResponse, str]:
    """The answer in the place of one that failed, and its outcome for metrics; what is a bug is logged."""
    if isinstance(error, HttpError):
        return refusal(error), error.outcome
    if isinstance(error, CallerGoneError):
        return sentence(400, error.message, closes=True), GONE
    if isinstance(error, ParseError):
        return sentence(400, error.message), "malformed"
    if isinstance(error, VcudaError):
        return sentence(500, error.message), "failed"
    log.error("request_failed", path=path[:200], exc_info=error)
    return sentence(500, bug), "failed"


def certificate_names(certificate: Mapping[str, Any] | None) -> frozenset[str]:
    """The common name and the DNS names of a certificate that TLS has verified, as `ssl` gives it."""
    found = certificate or {}
    subject = {value for part in found.get("subject", ()) for key, value in part if key == "commonName"}
    return frozenset(subject | {value for key, value in found.get("subjectAltName", ()) if key == "DNS"})


def no_such_path(paths: Iterable[str]) -> HttpError:
    return HttpError(404, "no_path", f"no such path; the paths are {', '.join(sorted(paths))}")


def slow(within: float) -> HttpError:
    return HttpError(408, "slow", f"the request did not arrive within {within:g}s; send it at once")


def cut() -> HttpError:
    return HttpError(400, GONE, "the body ended before it was complete; send it again")


def busy() -> HttpError:
    return HttpError(503, "busy", "too many large requests at the same time; try again")


def too_large(largest: int, instead: str) -> HttpError:
    size = f"{largest >> 20} MiB" if largest >= 1 << 20 else f"{largest >> 10} KiB"
    return HttpError(413, "too_large", f"the body is larger than {size}; {instead}")
