"""filter-dryrun: which of these nodes would carry the pod? Asked by a cluster autoscaler, which also asks about nodes
that do not exist yet.

In: a pod and names, or whole nodes. Out: all that fit. Nothing is reserved, no verdict is kept. A node that came along
and is not in the books counts as empty, with the GPUs that its inventory annotation or its labels describe: the
template of a node group has the labels of its nodes.
"""

from deviceplugin.cluster.extender.cache.node_info import NodeBook
from deviceplugin.cluster.extender.cache.scheduler_cache import Books
from deviceplugin.cluster.extender.filter import filtered, fitting_nodes
from deviceplugin.cluster.extender.refusal import Refusal
from deviceplugin.cluster.extender.settings import Settings
from deviceplugin.cluster.extender.snapshot import Nodes, View
from deviceplugin.cluster.extender.template import described
from deviceplugin.cluster.extender.wire import Filtered, Question
from deviceplugin.errors import ParseError, RequestError
from deviceplugin.model.pod_request import pod_request
from deviceplugin.placement.nodes import NodeScorer


class DryRun:
    """Has a scorer of its own: nodes that do not exist must not crowd out what is known of those that do."""

    def __init__(self, books: Books, scorer: NodeScorer, *, settings: Settings) -> None:
        self._books = books
        self._scorer = scorer
        self._settings = settings
        self._view = View(books, policy=settings.gpu_policy, names=settings.names)

    def filter(self, question: Question) -> Filtered:
        if not question.pod.pod.is_gpu:
            return Filtered(question.names)
        try:
            asked = pod_request(question.pod.pod, self._settings.names)
        except (RequestError, ParseError) as error:
            why = Refusal(error.message, resolvable=False)
            return filtered((), dict.fromkeys(question.names, why))
        return filtered(*fitting_nodes(self._scorer, self._settings, asked, self._nodes(question)))

    def _nodes(self, question: Question) -> Nodes:
        known = [name for name in question.names if name in self._books.nodes]
        nodes = self._view.nodes(question.pod, known)
        imagined = {each.node.name: each.node for each in question.full or ()}
        for name in question.names:
            if name in self._books.nodes:
                continue
            book = NodeBook(name)
            if name in imagined:
                book.describe(described(imagined[name], self._settings.names))
            if book.problem is None:
                nodes.states.append(book.state)
            else:
                nodes.refused[name] = book.problem
        return nodes
