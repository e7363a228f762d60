"""From a reservation to a Binding that the API server has.

`bind.Bind` is the door: it looks again and commits in memory. `binding` makes the annotations, `carry_out` writes them
and finds out what has become of them, `unconfirmed` holds what is in doubt. Invariant: a pod is held where it may be
bound, from before the write until the watch or the API server has said what came of it.
"""
