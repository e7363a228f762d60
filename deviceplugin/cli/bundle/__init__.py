"""`vcuda bundle`: one archive with what is needed to find out why an installation does not work.

In: the API server, with the caller's own rights. Out: a .tar.gz with an index. Invariants: no Secret and no ConfigMap
is read; of every object only named fields are kept, so what nobody thought of is left out; every line of text passes
the removal of tokens and keys; memory does not grow with the cluster.
"""
