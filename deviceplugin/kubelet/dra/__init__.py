"""Kubelet's other way to ask for GPUs, Dynamic Resource Allocation: which devices, which claims, which grants."""
