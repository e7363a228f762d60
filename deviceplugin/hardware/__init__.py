"""The only door to NVML: discovery, health, samples, and the kernel modules behind it."""
