"""Weighted graphs."""

from pathways.graph import Graph
from pathways.search import NoPath, components, find_cycle, reachable, shortest_path, spanning_tree, topological_order

__all__ = [
    "Graph",
    "NoPath",
    "components",
    "find_cycle",
    "reachable",
    "shortest_path",
    "spanning_tree",
    "topological_order",
]
