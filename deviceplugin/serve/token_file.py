"""A token in a file, which the mount of a Secret changes at any time.

In: a path, or none. Out: the token of now; empty where there is none, and then nobody shows the right one. Read again
after some seconds. Comparing takes as long whatever is shown.
"""

import secrets
import time
from collections.abc import Callable
from pathlib import Path

_GOOD_FOR_S = 10.0
_LONGEST = 4096
_SCHEME = "Bearer "


class TokenFile:
    """`clock` is monotonic."""

    def __init__(self, path: Path | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._token = ""
        self._until = clock()

    @property
    def token(self) -> str:
        if self._path is not None and self._clock() >= self._until:
            self._until = self._clock() + _GOOD_FOR_S
            self._token = _read(self._path)
        return self._token

    @property
    def headers(self) -> dict[str, str]:
        """What a client shows."""
        return {"Authorization": f"{_SCHEME}{self.token}"} if self.token else {}

    def is_shown(self, authorization: str) -> bool:
        """Whether the value of a request's header Authorization has the token."""
        return bool(self.token) and secrets.compare_digest(authorization.encode(), f"{_SCHEME}{self.token}".encode())


def _read(path: Path) -> str:
    try:
        with path.open(encoding="ascii") as file:
            return file.read(_LONGEST).strip()
    except (OSError, ValueError):
        return ""
