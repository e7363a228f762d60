"""The cluster-wide view: what every node, GPU and pod has, from the scheduler's cache, page by page.

`views` answers, `query` reads what was asked, `rows` describes, `page` sorts and cuts, `access` says whose names the
caller may read. Nothing here changes the cache or decides anything.
"""
