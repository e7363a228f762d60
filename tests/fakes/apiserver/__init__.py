"""A stand-in API server on loopback, with the semantics that our clients lean on.

Versions, watches with bookmarks, selectors, pages, preconditions (409), compaction (410), bindings, deletion in two
steps; and faults on demand. `ApiServer` is the door:

    async with ApiServer() as server:
        server.store.create("pods", pod("a", container(cores=50, blocks=8), node="n1"))
        server.kubeconfig(tmp / "kubeconfig")
        server.faults.fail(500, times=2, path="/pods")

By hand: `python -m tests.fakes.apiserver --port 0 --kubeconfig-out FILE`.
"""

from tests.fakes.apiserver.faults import Harm
from tests.fakes.apiserver.objects import container, node, pod
from tests.fakes.apiserver.server import ApiServer
from tests.fakes.apiserver.status import ApiError, JsonObject
from tests.fakes.apiserver.store import Store

__all__ = ["ApiError", "ApiServer", "Harm", "JsonObject", "Store", "container", "node", "pod"]
