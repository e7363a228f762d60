"""A workload replayed through the placement of the cluster: the operator's planning tool, and our benchmark.

In: a file of nodes and a file of pods. Out: how much of the GPUs is allocated as tasks arrive, what waits and why, as
JSON, a table or a picture. Not here: how a node or a GPU is chosen, which is `placement` alone.
"""
