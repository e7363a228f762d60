"""What gpu-manager served: `vcuda.sock` and files to containers, `display.GPUDisplay` and its metrics to operators."""
