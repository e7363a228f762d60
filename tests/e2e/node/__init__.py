"""What the e2e tests know of vcuda: its agent as a process, the emulated GPUs, what a container sees of its slice.

In: a running cluster. Out: scenarios' building blocks. Not here: the scenarios, and the cluster itself.
Invariant: what a container got is judged by what it sees from inside, never by what the agent says it gave.
"""
