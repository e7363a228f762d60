"""Tests of the benchmarks: that they run, and that they report what they find."""
