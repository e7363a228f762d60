"""What runs in a container of a check, as `python -m`: nothing outside of this folder is imported."""
