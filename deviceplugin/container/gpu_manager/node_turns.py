"""Whose turn it is: what containers send through their sockets is worked on in turns of the whole node.

In: a pod and its grant that have something to do. Out: their turn, one at a time, and the next one only after the pause
that this one has asked for. The turns go round by pod, and within a pod by grant. Invariants: however many containers
and connections a pod has, a round gives it one turn; what all of them cost together has a bound. Not here: the work.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field

from deviceplugin.ledger.grant import GrantId

_Turn = tuple[asyncio.Future[None], float]


@dataclass(slots=True)
class NodeTurns:
    """All calls on one loop."""

    _waiting: dict[str, dict[GrantId, deque[_Turn]]] = field(default_factory=dict)
    _next: asyncio.TimerHandle | None = None

    async def take(self, pod: str, grant: GrantId, *, pause_s: float) -> None:
        """Returns at this grant's turn; the next one's is `pause_s` later."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(pod, {}).setdefault(grant, deque()).append((turn, pause_s))
        if self._next is None:
            self._give()
        await turn

    def _give(self) -> None:
        self._next = None
        while self._waiting:
            turn, pause_s = self._first()
            if not turn.done():  # it is where the one who waited was cancelled
                turn.set_result(None)
                self._next = asyncio.get_running_loop().call_later(pause_s, self._give)
                return

    def _first(self) -> _Turn:
        """Its pod, and in that its grant, go to the end."""
        pod = next(iter(self._waiting))
        grants = self._waiting.pop(pod)
        grant = next(iter(grants))
        turns = grants.pop(grant)
        found = turns.popleft()
        if turns:
            grants[grant] = turns
        if grants:
            self._waiting[pod] = grants
        return found
