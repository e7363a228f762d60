"""From a reservation to a Binding that the API server has.

`bind.Bind` is the entry: it checks again, assumes the pod in memory, writes the Binding with its annotations and finds
out the result. `unconfirmed` follows Bindings without a clear result. Invariant: a pod holds its GPUs from before the
write until the watch or the API server has said what came of it.
"""
