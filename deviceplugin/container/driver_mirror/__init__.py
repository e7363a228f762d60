"""The driver mirror: the driver's files as containers mount them, with vcuda's library in front for shares.

    what is there     ldcache, elf ── search      components
    what is wanted    plan
    writing it        build ── trees ── mirror, the only module that other packages call

docs/driver-mirror.md is the page for operators.
"""
