"""The values that all packages share; no I/O.

Nothing here reads a file, a socket or a clock. Values are frozen. Parsers turn foreign text into values or raise
`errors.ParseError`.
"""
