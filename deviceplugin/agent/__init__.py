"""The node agent put together: the composition root of everything that runs on a GPU node."""
