"""The second half: a small cluster, in which the real `vcuda scheduler` chooses node and GPUs and agents obey.

`play` is what the acts have in common, and then one file for each act; `cast` the pods, `stage` what runs, `seen` how
pods are looked at, `tables` what people see, `findings` what `--output json` prints of it, `promises` what must hold.
"""
