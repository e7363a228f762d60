"""HTTP for the scheduler: routes over TLS, limits on requests, metrics, and an orderly shutdown."""
