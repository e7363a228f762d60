"""vcuda: a pod asks for a slice of a GPU and gets exactly that slice.

The folders are the architecture (ARCHITECTURE.md); imports run one way, from `cli` down to `errors`.
"""

__version__ = "0.1.0"
