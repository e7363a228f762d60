"""What a reflector did, as the server and the log saw it."""

from collections.abc import Sequence

from structlog.typing import EventDict

from sandbox.apiserver import ApiServer


def lists(server: ApiServer) -> int:
    """Lists that began, whatever came of them; further pages do not count."""
    return sum("watch=true" not in path and "continue=" not in path for _method, path in server.requests)


def failures(logs: Sequence[EventDict]) -> int:
    """Of `structlog.testing.capture_logs`."""
    return sum(entry["event"] == "watch_failed" for entry in logs)
