"""A real single-node Kubernetes on this machine, for tests and benchmarks.

In: the programs (`prerequisites`). Out: `cluster.Cluster`, whose parts (etcd, control plane, containerd, kubelet) can
be stopped, killed and started one by one, and `client.Client` to talk to it.
Not here: anything that knows vcuda; that is `tests/e2e/node`.
Invariant: everything of one cluster carries its identifier and lies under its root, its cgroup or its mount namespace,
so that `leftovers` can remove it all, even after the test process itself was killed.
"""
