"""The serving certificate: signed by a CA that the scheduler makes and rotates, or read from files of another tool."""
