"""vcuda: a pod asks for a part of a GPU's time and memory and gets it, with limits.

The folders are the architecture (ARCHITECTURE.md); imports run one way, from `cli` down to `errors`.
"""

__version__ = "0.1.0"
