"""Behind `scripts/demo`: the real agent and scheduler on an emulated driver, between stand-ins for Kubernetes.

`__main__` reads the command line and runs the two shows, `node_steps` and `cluster_steps`. For both, `setup` starts the
programs, `pods` has what users submit, and `output` prints. `*_inspect` looks at pods, `*_checks` says what must hold,
`greedy` runs the program that takes all that it can get.
"""
