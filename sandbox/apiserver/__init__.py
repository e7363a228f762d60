"""A stand-in API server on loopback, with the semantics that vcuda's clients need.

Versions, watches with bookmarks, selectors, pages, preconditions (409), compaction (410), bindings, deletion in two
steps; and faults on demand. Start with `ApiServer`:

    async with ApiServer() as server:
        server.store.create("pods", pod("a", container(cores=50, blocks=8), node="n1"))
        server.kubeconfig(tmp / "kubeconfig")
        server.faults.fail(500, times=2, path="/pods")

By hand: `python -m sandbox.apiserver --port 0 --kubeconfig-out FILE`.
"""

from sandbox.apiserver.faults import Harm
from sandbox.apiserver.objects import container, node, pod
from sandbox.apiserver.server import ApiServer
from sandbox.apiserver.status import ApiError, JsonObject
from sandbox.apiserver.store import Store

__all__ = ["ApiError", "ApiServer", "Harm", "JsonObject", "Store", "container", "node", "pod"]
