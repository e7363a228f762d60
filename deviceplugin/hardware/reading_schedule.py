"""When the GPUs are read next, and for what. Pure: the clock is an argument.

In: what each reading gave, and which GPUs are lost. Out: what is due, and how long nothing is. Events are due every
second at most, samples every sample period, the survey of what changes seldom every rescan period. NVML is opened again
after a failure, and with growing intervals while a GPU is lost: it may come back under a new handle only.
"""

import math
from dataclasses import dataclass

from deviceplugin.backoff import Backoff, no_jitter
from deviceplugin.hardware.options import HardwareOptions

_LISTEN_PERIOD_S = 1.0


@dataclass(frozen=True, slots=True)
class Due:
    """What one reading is for."""

    listen: bool
    sample: bool
    survey: bool


class Schedule:
    """Moments are of the monotonic clock; 0 means at once."""

    def __init__(self, options: HardwareOptions) -> None:
        self._options = options
        self._listen_period = min(_LISTEN_PERIOD_S, options.sample_period_s)
        self._proved = False
        self._open_at = 0.0
        self._listen_at = 0.0
        self._sample_at = 0.0
        self._survey_at = 0.0
        self._retry = Backoff(first=options.retry_first_s, most=options.retry_most_s, jitter=no_jitter)
        self._search = Backoff(first=options.rescan_period_s, most=30 * options.rescan_period_s, jitter=no_jitter)
        self._deaf = Backoff(first=options.retry_first_s, most=options.retry_most_s, jitter=no_jitter)

    def must_open(self, now: float) -> bool:
        return now >= self._open_at

    def due(self, now: float) -> Due:
        return Due(listen=now >= self._listen_at, sample=now >= self._sample_at, survey=now >= self._survey_at)

    def pause(self, now: float, *, is_open: bool) -> float:
        moments = (self._open_at, self._listen_at, self._sample_at, self._survey_at) if is_open else (self._open_at,)
        return max(0.0, min(moments) - now)

    def opened(self, *, everything: bool) -> None:
        """NVML was opened; `everything` answers, so nothing needs to be searched for."""
        self._proved = False
        self._open_at = math.inf
        self._listen_at = self._sample_at = self._survey_at = 0.0
        if everything:
            self._search.reset()

    def answered(self, now: float, due: Due, *, deaf: bool, events: bool, lost: bool) -> None:
        """NVML answered; `lost`: some GPU did not, so NVML is opened again before long."""
        self._proved = True
        self._retry.reset()
        if deaf:
            self._listen_at = now + self._deaf.next()
        elif due.listen:
            self._listen_at = now + self._listen_period
            self._deaf.reset()
        if due.sample:
            self._sample_at = now + self._options.sample_period_s
        if due.survey:
            self._survey_at = now + self._options.rescan_period_s
        if events:
            self._survey_at = now + self._listen_period  # the driver's advice follows the event by a moment
        self._search_while(lost, now)

    def failed(self, now: float) -> float:
        """NVML could not be opened or asked: how long until it is tried again."""
        delay = self._retry.next()
        self._open_at = now + delay
        return delay

    def open_at_once(self) -> None:
        self._open_at = 0.0

    def went_stale(self) -> bool:
        """Handles are void: NVML is opened at once, but never twice without a good reading in between (False)."""
        if self._proved:
            self.open_at_once()
        return self._proved

    def open_in(self, now: float, seconds: float) -> None:
        self._open_at = now + seconds

    def _search_while(self, lost: bool, now: float) -> None:
        if not lost:
            self._search.reset()
            self._open_at = self._open_at if self._open_at == 0.0 else math.inf
        elif self._open_at == math.inf:
            self._open_at = now + self._search.next()
