"""Tests of benchmarks/gpu on the emulated driver."""
