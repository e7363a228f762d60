"""The answers to kube-scheduler: which nodes carry a pod, on which GPUs, whom to evict, and the Binding.

In: the state of the cluster as values (`books`), requests as bytes of the extender protocol (`wire`). Out: answers as
values and one write for each pod. Not here: HTTP, the API server itself, watches. Everything runs on one asyncio loop,
and nothing awaits between reading what is used and reserving: two pods never get the same part of a GPU.
"""
