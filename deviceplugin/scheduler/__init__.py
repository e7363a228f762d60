"""Composition root of `vcuda scheduler`."""
