"""A soak: minutes of random pods and random faults on a real node, watched from outside.

In: how long, and a seed. Out: a table, and a sentence for each promise that did not hold. Not here: scenarios with one
known outcome; those are the tests of `tests/e2e`.
Invariant: every random decision comes from the seed; what is judged comes from `/proc`, cgroups and files, and the
agent's own words are only compared with it.
"""
