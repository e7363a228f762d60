"""What the container sees: the grant's directory and the limits in it."""
