"""CUDA processes of tests that need more than a worker's one call at a time; run as files, with the library's path."""
