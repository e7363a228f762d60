"""The cluster half on a real Kubernetes: what is installed, who takes part, and what must be true afterwards."""
