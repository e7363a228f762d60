"""The GPUs of this node: NVML, discovery, health, samples, and the kernel modules."""
