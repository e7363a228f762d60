"""When upkeep looks again: at each period, and sooner while something waits for it.

In: what the last round left over. Out: seconds. A grant that seems to have ended is looked at again soon, for other
pods wait for its slots. A pod that does not say yet what it holds is too, but less and less often: where the API server
refuses the annotation, hundreds of nodes must not ask it every other second.
"""

from deviceplugin.backoff import Backoff

AGAIN_S = 2.0


class Hurry:
    """`anew` when there is another pod to tell of."""

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._telling = Backoff(first=AGAIN_S, most=max(period_s, AGAIN_S))

    def wait(self, *, suspicious: bool, untold: bool) -> float:
        telling = self._telling.next() if untold else self._period_s
        if not untold:
            self._telling.reset()
        return min(self._period_s, AGAIN_S if suspicious else self._period_s, telling)

    def anew(self) -> None:
        self._telling.reset()
