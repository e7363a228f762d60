"""What the operator sees: metrics, usage, the topology picture."""
