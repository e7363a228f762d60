"""The changes of a collection of a real API server, as a watch tells them.

In: the admin's client, a path, a resource version. Out: objects, in order; a failed watch is a `BenchmarkError`.
"""

import json
from collections.abc import Iterator

import urllib3

from benchmarks.command import BenchmarkError
from sandbox.cluster.client import Client, JsonObject


def changes(admin: Client, path: str, version: str) -> Iterator[JsonObject]:
    """Ends when the API server ends the watch: with a slow reader, or after half a minute."""
    query = f"watch=true&resourceVersion={version}&timeoutSeconds=30"
    reply = admin.pool.request(
        "GET", f"{admin.server}{path}?{query}", preload_content=False, timeout=urllib3.Timeout(60), retries=False
    )
    try:
        rest = b""
        for chunk in reply.stream(1 << 16):
            *lines, rest = (rest + chunk).split(b"\n")
            for event in map(json.loads, lines):
                if event["type"] == "ERROR":
                    raise BenchmarkError(f"the watch of {path} failed: {event['object'].get('message')}")
                yield event["object"]
    finally:
        reply.close()
