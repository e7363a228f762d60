"""A large cluster for `benchmarks.extender`: its objects, its API server, its kube-scheduler, the measured process."""
