"""What the operator sees: metrics, the display API, the topology picture."""
