"""The page that shows a cluster in a browser: HTML, CSS, a few ES modules, and `files`, which answers with them.

In: nothing. Out: files as they stand here: no build step, no framework. The page reads the scheduler's view by
addresses relative to its own, so it works behind a path prefix. Invariant: a text of the cluster is only set as text.
"""
