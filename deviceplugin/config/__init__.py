"""The settings of `vcuda agent` and `vcuda scheduler`: frozen trees, filled from flags, environment, file and defaults.

In: texts. Out: `agent.AgentSettings` and `scheduler.SchedulerSettings` with every value parsed, and where each came
from. The trees are the reference: flags, variables, keys of the file, help and docs/reference are made from them. Only
`cli`, `agent` and `scheduler` import this folder; other packages get values as arguments, and the extender, Volcano's
verbs and the webhook their frozen section: `PlacementSettings`, `WebhookSettings`.
"""
