"""What the service proves itself with: an authority of our own and its rotation, or files that somebody renews."""
