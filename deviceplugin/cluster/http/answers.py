"""The answer to a verb, whichever listener the request came by.

In: a verb and the whole body, or the error in place of it. Out: an `HttpAnswer`. Every bad input gets one sentence
with the right status; a bug gets one general sentence and a line in the log.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import structlog

from deviceplugin.cluster.http.metrics import SchedulerMetrics
from deviceplugin.cluster.http.verbs import GONE, HttpError, Service, Verb, VerbResponse, unavailable
from deviceplugin.errors import CallerGoneError, ParseError, VcudaError

log = structlog.get_logger("vcuda.http")
BUG = "vcuda internal error; see the scheduler's log"


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """`body` is JSON with status 200, else a sentence. `closes`: the connection cannot be used again."""

    status: int
    body: bytes
    outcome: str
    rejections: Mapping[str, int] = field(default_factory=dict)
    closes: bool = False


class Answers:
    """Of one service."""

    def __init__(self, service: Service, metrics: SchedulerMetrics) -> None:
        self._service = service
        self._metrics = metrics
        for verb in service.verbs:
            metrics.expect(verb.name, verb.outcomes)

    async def asked(self, verb: Verb, body: bytes) -> VerbResponse:
        """Raises what the verb raises."""
        if not verb.before_ready and (missing := self._service.not_ready()):
            raise unavailable(f"not ready yet: {'; '.join(missing)}")
        return await verb.answer(body)

    async def counted(self, verb: Verb, body: bytes) -> HttpAnswer:
        """Raises nothing but a cancellation."""
        began, outcome = time.perf_counter(), "failed"
        rejections: Mapping[str, int] = {}
        try:
            found = await self.asked(verb, body)
            outcome, rejections = found.outcome, found.rejections
            return HttpAnswer(200, found.body, outcome, rejections)
        except Exception as error:
            answer = answer_to(error, verb)
            outcome = answer.outcome
            return answer
        finally:
            self._metrics.observe(verb.name, outcome, time.perf_counter() - began, rejections)

    def refused(self, verb: Verb, error: HttpError) -> HttpAnswer:
        """To a request whose body did not come or was not read."""
        self._metrics.observe(verb.name, error.outcome, 0.0, {})
        return answer_to(error, verb)


def answer_to(error: Exception, verb: Verb) -> HttpAnswer:
    if isinstance(error, HttpError):  # the rest of the body may not have been read
        return HttpAnswer(error.status, sentence(error.sentence), error.outcome, closes=True)
    if isinstance(error, CallerGoneError):
        return HttpAnswer(400, sentence(error.message), GONE, closes=True)
    if isinstance(error, VcudaError):
        status, outcome = (400, "malformed") if isinstance(error, ParseError) else (500, "failed")
        return HttpAnswer(status, sentence(error.message), outcome)
    log.error("request_failed", path=f"/{verb.name}", exc_info=error)
    return HttpAnswer(500, sentence(BUG), "failed")


def sentence(text: str) -> bytes:
    return f"{text}\n".encode()
