"""The admission webhook without its HTTP: a review in, a review out.

`review.AdmissionWebhook` is the entry. `mutate` changes a pod so that it can run, `validate` reports what can never
run, `pod_json` makes the patch. The chart (daemonset/chart) has the CEL by which the API server decides which pods it
sends here, and who may change the annotations that vcuda writes. Everything here is pure: what is known of the cluster
comes in as `resources.KnownGpus`.
"""
