"""Rollouts under a clock that jumps: the real scheduler, controller and episodes with models of all that takes time.

Importing it loads no torch.
"""
