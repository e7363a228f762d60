"""The cluster-wide view: what every node, GPU and pod has, from the scheduler's cache, page by page.

`views` answers, `query` reads what was asked, `rows` describes, `page` sorts and cuts, `access` says whose names the
caller may read. `claim_books` and the modules named after it add what claims hold, which the extender never reads.
Nothing here changes the cache or decides anything.
"""
