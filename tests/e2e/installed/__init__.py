"""The chart at work in its own pods: the image, the release, what its accounts asked of the API server."""
