"""Sandboxes for programs that ask the gateway from inside."""

from sandboxing import bubblewrap, containing, own_state, usable

__all__ = ["bubblewrap", "containing", "own_state", "usable"]
