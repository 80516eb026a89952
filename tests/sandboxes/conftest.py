"""Every test here may have sandboxes."""

from sandboxing import ALL, CONTAINING, backend, bubblewrap, containing, docker, own_state, usable

__all__ = ["ALL", "CONTAINING", "backend", "bubblewrap", "containing", "docker", "own_state", "usable"]
