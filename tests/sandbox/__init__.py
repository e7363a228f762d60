"""Tests of the stand-ins themselves."""
