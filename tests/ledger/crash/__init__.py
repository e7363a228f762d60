"""Crashes and disk errors at every change that the ledger makes to its files; see `driver`."""
