"""Stand-ins for the programs around the agent: real servers on loopback and unix sockets, no mocks."""
