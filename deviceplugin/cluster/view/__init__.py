"""The cluster-wide view: what every node, GPU and pod has, from the scheduler's cache, page by page.

`views` answers, `query` reads what was asked, `rows` describes, `page` sorts and cuts, `access` says who may
ask. `claim_gpus` adds what claims hold. Nothing here changes the cache or decides anything.
"""
