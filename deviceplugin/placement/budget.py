"""How much work one request may cause, counted in steps and so the same on every machine.

In: steps that are about to be made. Out: whether they may be. A step is one look at one GPU for one container, about
half a microsecond. One budget is given to everything that is done for a request, and the answer says to the
user that it was spent: `NodeRejection.NOT_LOOKED_AT`.

Invariant: what a budget has refused once it refuses from then on, so that nothing is left out in the middle.
"""

import sys

import msgspec

AT_ONCE = 20_000
"""For one request between two turns of an event loop: some 10 ms, and as much again to go through 5,000 nodes. What is
begun then is ended."""
ON_ONE_NODE = 50_000
"""To place the containers of one pod on one node. Ordinary pods take less than a hundredth of it."""


class Budget(msgspec.Struct):
    """`spent` is more than `most` by the steps that were refused first; what is refused after them costs nothing.

    `is_last`: the answer counts although the budget was spent; else the same question is asked again with another one.
    `others`: steps for objects of others, which who asks does not pay. `is_complete`: whether there is an answer, where
    that is known; else there is one if the budget was not spent.
    """

    most: int = sys.maxsize
    is_last: bool = True
    spent: int = 0
    others: int = 0
    is_complete: bool | None = None

    @property
    def goes_on(self) -> bool:
        return not self.is_last and (self.is_spent if self.is_complete is None else not self.is_complete)

    @property
    def is_spent(self) -> bool:
        return self.spent > self.most

    @property
    def left(self) -> int:
        return max(0, self.most - self.spent)

    @property
    def may_for_others(self) -> bool:
        """Whether more may be begun for them: a fifth of a turn, and nothing when an answer is due."""
        return self.most == sys.maxsize or (not self.is_last and self.others < AT_ONCE // 5)

    def put_off(self) -> None:
        """What the answer depends on was not finished with this budget."""
        self.is_complete = False

    def may(self, steps: int) -> bool:
        """Takes the steps, or refuses them and all that follow."""
        if self.spent <= self.most:
            self.spent += steps
        return self.spent <= self.most
