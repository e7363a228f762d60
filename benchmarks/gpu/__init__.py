"""Checks and measurements of the vGPU library on a real GPU; on the emulated driver where there is none (README.md)."""
