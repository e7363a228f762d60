"""A container runtime by its CRI socket: `FakeRuntime` listens on a real one, its containers are put in by hand."""

from sandbox.runtime.runtime import FakeRuntime, Manner, RuntimeContainer

__all__ = ["FakeRuntime", "Manner", "RuntimeContainer"]
