"""Why a pod waits.

`explain.Explain` is the entry and has the sentences. `verdicts` keeps filter's last answers; if filter was not asked,
`evaluate` evaluates the nodes now. Invariant: an explanation changes nothing: only filter's answers are recorded, and
nothing is reserved.
"""
