"""The one place where GPUs are chosen: pure functions on `model` values.

In: a request and a snapshot of the node. Out: a choice with its reasons, or `errors.CapacityError`. The node agent, the
scheduler extender, the simulator and `vcuda place` all call this; they differ only in how fresh their snapshot is.
"""
