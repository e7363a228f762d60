"""Commands of the repository; `demonstration` is the Python behind `scripts/demo`."""
