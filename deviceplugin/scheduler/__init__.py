"""`vcuda scheduler`: builds webhook, extender, certificates and leadership from the settings, and runs them."""
