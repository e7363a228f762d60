"""The systems from which a cluster moves to vcuda: stand-ins for gpu-manager and HAMi, and the pages' commands."""
