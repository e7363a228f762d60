"""The answers to kube-scheduler: which nodes carry a pod, on which GPUs, whom to evict, and the Binding.

In: the state of the cluster as values, requests as bytes of the extender protocol (`wire`). Out: answers as values and
one write for each pod. `extender.Extender` is the door. The verbs lie here, one file for each; `books/` is who holds
what of which node, `explain/` why a pod waits, `bind/` the way to a Binding. `books/` knows neither of the other two,
and they do not know each other. Not here: HTTP, the API server itself, watches. Everything runs on one asyncio loop,
and nothing awaits between reading what is used and reserving: two pods never get the same part of a GPU.
"""
