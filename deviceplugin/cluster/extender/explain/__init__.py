"""Why a pod waits.

`explain.Explain` is the entry. `verdicts` keeps filter's last answers; where filter was not
asked, `evaluate` evaluates the nodes now. `wording` has the sentences. Invariant: an explanation changes nothing: only
filter's answers are recorded, and nothing is reserved.
"""
