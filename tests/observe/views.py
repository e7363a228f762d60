"""An agent that shows whatever a test wants."""

from dataclasses import dataclass, field

from deviceplugin.observe.node_view import AgentState, NodePicture


@dataclass
class Clock:
    """A monotonic clock that stands still until the test changes it."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class StillView:
    """A `NodeView` that stands still until the test changes it; `fails` stands for a bug in the agent."""

    shown: NodePicture = field(default_factory=lambda: NodePicture("gpu-7", None))
    is_: AgentState = field(default_factory=lambda: AgentState(registered=True, synced=True))
    fails: bool = False

    def picture(self) -> NodePicture:
        if self.fails:
            raise ZeroDivisionError("a secret of the inside")
        return self.shown

    def state(self) -> AgentState:
        return self.is_
