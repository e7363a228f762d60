"""Why a pod waits.

`explain.Explain` is the entry for pods of the device plugin, and has the sentences. `verdicts` keeps filter's last
answers; if filter was not asked, `evaluate` evaluates the nodes now. `claims` explains pods with ResourceClaims by the
same measures. Invariant: an explanation changes nothing: only filter's answers are recorded, and nothing is reserved.
"""
