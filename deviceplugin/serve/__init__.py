"""One HTTP server for every door of the product, with one set of bounds."""
