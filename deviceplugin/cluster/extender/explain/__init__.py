"""Why a pod waits.

`explain.Explain` is the door, `explanation` what it answers. `verdicts` keeps what filter said last; where filter was
not asked, `now` judges the nodes afresh, `sums` says what kube-scheduler itself may hold against them, and `unasked`
puts that into words. `node_verdicts` and `missing` show the nodes in full. `pace` lets kube-scheduler's own questions
through in between. Invariant: asking changes nothing; only filter's answers are recorded, and no reservation is made.
"""
