"""Workloads that the repository ships."""
