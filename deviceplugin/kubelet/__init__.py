"""The gRPC edge to kubelet: registration, the two resource servers, identity, the answer, the checkpoint."""
