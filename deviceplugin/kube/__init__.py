"""The only door to the API server: client, reflector, structs, events, node labels."""
