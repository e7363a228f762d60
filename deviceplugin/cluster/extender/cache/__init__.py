"""Who holds what of which node.

`scheduler_cache.SchedulerCache` is the entry: it follows the watches and the verbs. `node_info` is one node, `pod_hold`
what one pod holds of it, and `claim_holds` what ResourceClaims hold, which is only shown. Not here: any choice, and the
API server. Invariant: nothing here knows a verb, and nothing awaits; a read followed by a reservation is not
interrupted.
"""
