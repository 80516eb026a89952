"""Walking through graphs."""

import heapq
from collections import deque


class NoPath(Exception):
    """There is no way from one node to another."""


def shortest_path(graph, start, goal):
    """The way with the smallest sum of weights, as (sum, nodes). Dijkstra's algorithm."""
    heap = [(0, 0, start)]
    best = {start: 0}
    before = {}
    done = set()
    count = 0
    while heap:
        cost, _, node = heapq.heappop(heap)
        if node in done:
            continue
        done.add(node)
        if node == goal:
            path = [node]
            while path[-1] != start:
                path.append(before[path[-1]])
            return cost, path[::-1]
        for other, weight in graph.neighbours(node).items():
            longer = cost + weight
            if other not in best or longer < best[other]:
                best[other] = longer
                before[other] = node
                count += 1
                heapq.heappush(heap, (longer, count, other))
    raise NoPath(f"no way from {start!r} to {goal!r}")


def reachable(graph, start, limit=None):
    """Nodes that can be reached, with the number of edges on the way; at most `limit` of them."""
    steps = {start: 0}
    queue = deque([start])
    while queue:
        node = queue.popleft()
        if limit is not None and steps[node] >= limit:
            continue
        for other in graph.neighbours(node):
            if other not in steps:
                steps[other] = steps[node] + 1
                queue.append(other)
    return steps


def components(graph):
    """Connected components of an undirected graph, the largest first, each in the order of its nodes."""
    if graph.directed:
        raise ValueError("components are of undirected graphs")
    left = dict.fromkeys(graph.nodes)
    found = []
    while left:
        start = next(iter(left))
        inside = reachable(graph, start)
        found.append([node for node in graph.nodes if node in inside])
        for node in inside:
            del left[node]
    return sorted(found, key=len, reverse=True)


def topological_order(graph):
    """Nodes in an order in which every edge leads forward; of several, the first by the order of the nodes."""
    if not graph.directed:
        raise ValueError("an order needs a directed graph")
    incoming = dict.fromkeys(graph.nodes, 0)
    for _, end, _ in graph.edges():
        incoming[end] += 1
    order = []
    while len(order) < len(incoming):
        free = next((node for node in incoming if incoming[node] == 0 and node not in order), None)
        if free is None:
            raise ValueError("the graph has a cycle")
        order.append(free)
        for other in graph.neighbours(free):
            incoming[other] -= 1
    return order


def find_cycle(graph):
    """The nodes of a cycle of a directed graph, the first one repeated at the end; None if there is none."""
    state = {}
    path = []

    def visit(node):
        state[node] = "open"
        path.append(node)
        for other in graph.neighbours(node):
            if state.get(other) == "open":
                return [*path[path.index(other) :], other]
            if other not in state:
                found = visit(other)
                if found is not None:
                    return found
        state[node] = "done"
        path.pop()
        return None

    for node in graph.nodes:
        if node not in state:
            found = visit(node)
            if found is not None:
                return found
    return None


def spanning_tree(graph):
    """Edges of a minimum spanning forest, as (weight, edges). Kruskal's algorithm."""
    parent = {node: node for node in graph.nodes}

    def root(node):
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    total = 0
    chosen = []
    for start, end, weight in sorted(graph.edges(), key=lambda edge: edge[2]):
        first, second = root(start), root(end)
        if first != second:
            parent[first] = second
            total += weight
            chosen.append((start, end, weight))
    return total, chosen
