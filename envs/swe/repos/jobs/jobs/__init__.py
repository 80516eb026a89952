"""Queues and schedules."""

from jobs.queue import PriorityQueue, merge
from jobs.scheduler import Scheduler

__all__ = ["PriorityQueue", "Scheduler", "merge"]
