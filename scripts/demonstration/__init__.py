"""The demo: the real agent and the real scheduler on an emulated driver, with stand-ins for Kubernetes around them.

`command` reads the command line, `halves` are the node's half (`node/`) and the cluster's (`cluster/`), `show` is what
people see of both, `document` what `--output json` prints. Each half has its acts in files of their own, the pods in
`cast`, what runs in `stage`, and what must hold in `promises`.
"""
