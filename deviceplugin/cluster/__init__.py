"""The cluster half: the admission webhook, the scheduler extender and what they share."""
