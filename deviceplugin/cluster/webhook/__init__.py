"""The admission webhook without its HTTP: a review in, a review out.

`review.Webhook` is the door. `mutate` normalises a pod, `validate` says what can never run, `patch` writes the
difference down; `conditions` says as CEL which pods the API server shall send at all and who may change what our
programs wrote. Everything here is pure: what is known of the cluster comes in as `settings.KnownGpus`.
"""
