"""What runs inside a container of interposed.py: processes that use the driver's libraries as programs do."""
