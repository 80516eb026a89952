"""Workers on devices: where they are, how they are called as one, and what happens when one of them dies.

Nothing below knows of this package: environments, agents, losses and the scheduler are the same on one CPU and on a
cluster. Ray is imported by `ray_runtime` alone.
"""
