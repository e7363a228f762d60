"""`vcuda doctor`: checks of a cluster, or of one node, each with one line and with what to do.

In: the API server with the caller's own rights, or the node with the agent's own settings. Out: findings, as text or as
a document, and status 1 where something has failed. Nothing is changed: the one pod that is sent is not created.
"""
