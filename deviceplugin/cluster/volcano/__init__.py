"""Volcano's scheduler asks about tasks and nodes by its plugin `extender`: the same GPUs, the same books."""
