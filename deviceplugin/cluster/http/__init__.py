"""The service on its port: routes over TLS, limits on what comes in, metrics, and an end in order."""
