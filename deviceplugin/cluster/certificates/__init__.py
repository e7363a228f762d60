"""The serving certificate: made from a CA that is in a Secret, or read from files of another tool."""
