"""The cluster-wide view: what every node, GPU and pod has, from the scheduler's cache, page by page.

`views` answers, `query` reads what was asked, and sorts and cuts, `rows` describes, `live` asks the agents and keeps
what pods used, `access` says who may ask. Nothing here changes the cache or decides anything.
"""
