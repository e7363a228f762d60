"""Checks and measurements of the library on a real GPU, or on the emulated driver if there is none (README.md)."""

from benchmarks.gpu.structs import provide

provide()
