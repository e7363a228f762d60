"""The labels that the agent's metrics have in common, and the type of their descriptions."""

from deviceplugin.exposition import Family

__all__ = ["CONTAINER", "GPU", "Family"]

GPU = ("node", "gpu")
CONTAINER = (*GPU, "namespace", "pod", "container")
