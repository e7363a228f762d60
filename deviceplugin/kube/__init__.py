"""The Kubernetes API: transport, credentials, watches, and the typed objects that vcuda reads and writes."""
