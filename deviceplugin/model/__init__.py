"""The words of vcuda: values without I/O that every other folder speaks.

Nothing here reads a file, a socket or a clock. Values are frozen; parsers turn foreign text into them or raise
`errors.ParseError`.
"""
