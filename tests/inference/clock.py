"""Tests in which time passes at once."""

from __future__ import annotations

from rollenv.simulation.clock import run_virtual as run_jumping

__all__ = ["run_jumping"]
