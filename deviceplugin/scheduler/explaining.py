"""What can be said of a pod that is bound already: where it is and what it holds.

In: the books. Out: an `Explanation` like that of a waiting pod, or none.
"""

from deviceplugin.cluster.extender.books import Books
from deviceplugin.cluster.extender.explain import Explanation
from deviceplugin.model.units import format_blocks


def bound_pod(books: Books, namespace: str, name: str) -> Explanation | None:
    """Looks through all pods: people ask seldom."""
    for book in books.nodes.values():
        for held in book.holdings.values():
            if not held.is_bound or (held.pod.namespace, held.pod.name) != (namespace, name):
                continue
            shares = [
                f"container {one.owner.name}: {share.cores} cores and {format_blocks(share.blocks)} of {share.uuid}"
                for one in held.allocations
                for share in one.shares
            ]
            unknown = [
                f"container {each.name}: where its agent put it, which is not known yet" for each in held.somewhere
            ]
            return Explanation(
                pod=f"{namespace}/{name}",
                sentence=held.problem or f"it is bound to node {book.name}",
                at=0.0,
                node=book.name,
                asked=(*shares, *unknown),
                reasons={},
                nodes=(),
                left_out=0,
            )
    return None
