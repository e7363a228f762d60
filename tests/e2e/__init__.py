"""Tests on a real Kubernetes: `cluster` brings it up, `node` knows vcuda, the tests stand beside this file."""
