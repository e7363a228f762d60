"""What gpu-manager served to containers, for images that were built for it."""
