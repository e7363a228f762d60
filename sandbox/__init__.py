"""Servers that stand in for Kubernetes and the GPU under vcuda, without a cluster and a GPU: see README.md here."""
