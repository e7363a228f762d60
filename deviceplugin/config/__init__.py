"""How `vcuda agent` is told what to do: one tree of settings, filled from flags, environment, file and defaults.

In: texts. Out: `agent.AgentSettings`, frozen, with every value parsed, and where each came from. `agent` is the
reference: what is documented, offered as a flag, mirrored in the environment and accepted in the file is read off it.
Only `cli` and `agent` import this folder; what the others need, they get as arguments.
"""
