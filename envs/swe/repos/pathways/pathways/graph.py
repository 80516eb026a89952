"""A graph as a table of neighbours."""


class Graph:
    """Nodes and weighted edges, directed or not. One edge at most leads from a node to another."""

    def __init__(self, edges=(), directed=False):
        self.directed = directed
        self._next = {}
        for edge in edges:
            self.add_edge(*edge)

    @property
    def nodes(self):
        """All nodes, in the order in which they came."""
        return list(self._next)

    def add_node(self, node):
        """Adds a node without edges, unless it is there."""
        self._next.setdefault(node, {})

    def add_edge(self, start, end, weight=1):
        """Adds an edge and its nodes; replaces the weight of one that is there."""
        if weight < 0:
            raise ValueError("weights cannot be negative")
        self.add_node(start)
        self.add_node(end)
        self._next[start][end] = weight
        if not self.directed:
            self._next[end][start] = weight

    def remove_node(self, node):
        """Removes a node and its edges."""
        if node not in self._next:
            raise KeyError(node)
        del self._next[node]
        for others in self._next.values():
            others.pop(node, None)

    def neighbours(self, node):
        """Nodes that an edge leads to, with the weights."""
        return dict(self._next[node])

    def weight(self, start, end):
        """An edge's weight; None where there is no edge."""
        return self._next.get(start, {}).get(end)

    def edges(self):
        """All edges as (start, end, weight); undirected ones once."""
        found = []
        seen = set()
        for start, others in self._next.items():
            for end, weight in others.items():
                if not self.directed and (end, start) in seen:
                    continue
                seen.add((start, end))
                found.append((start, end, weight))
        return found

    def degree(self, node):
        """How many edges lead away from a node."""
        return len(self._next[node])

    def reversed(self):
        """The same graph with every edge turned round."""
        turned = Graph(directed=self.directed)
        for node in self.nodes:
            turned.add_node(node)
        for start, end, weight in self.edges():
            turned.add_edge(end, start, weight)
        return turned
