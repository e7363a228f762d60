"""The driver mirror: the driver's files as containers mount them, with our library in front for shares.

    what is there     driver_root, ldcache, elf ── search ── choice      interposers
    what shall be     components ── plan
    making it so      build ── trees ── mirror, which is all that others use

docs/driver-mirror.md is the page for operators.
"""
