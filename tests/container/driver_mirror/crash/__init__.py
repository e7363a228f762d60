"""Crashes and a full disk at every change that the mirror makes to its directory; see `driver`."""
