"""The parts of `benchmarks.dra`."""
