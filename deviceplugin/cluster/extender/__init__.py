"""The scheduler extender: which nodes can serve a pod, on which GPUs, which pods to evict, and the Binding.

In: the cluster's state as values, requests as bytes of the extender protocol (`wire`). Out: answers as values, and one
write for each pod. `extender.Extender` is the entry. The verbs lie here, one file for each; `cache/` is who holds what
of which node, `explain/` why a pod waits, `bind/` the way to a Binding. `cache/` knows neither of the other two, and
they do not know each other. Not here: HTTP, the API server, watches. Everything runs on one asyncio loop, and nothing
awaits between reading what is free and reserving it: two pods never get the same part of a GPU.
"""
