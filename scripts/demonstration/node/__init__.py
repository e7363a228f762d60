"""The first half: one node whose GPUs pods share, the agent that dies, programs that take all they can get.

`play` is what the acts have in common, and then one file for each act; `cast` the pods, `stage` what runs, `seen` how
it is looked at, `greedy` the program that takes all it can get and `container` what it finds, `tables` what people see,
`promises` what must hold.
"""
