"""Who holds what of which node.

`books.Books` is the door: it follows the watches and the verbs. `node_book` is one node, `holding` what one pod has of
it, `beside` the CPU and memory beside its GPUs; `reservations` ends what is not bound in time, `overbooked` looks for
GPUs of which more is held than there is. Not here: any choice, and the API server. Invariant: nothing here knows a
verb, and nothing awaits; whoever reads and then reserves in one go is not interrupted.
"""
