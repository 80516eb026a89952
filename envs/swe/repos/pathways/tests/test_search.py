import pytest

from pathways import Graph, NoPath, components, find_cycle, reachable, shortest_path, spanning_tree, topological_order

ROADS = Graph([("a", "b", 7), ("a", "c", 3), ("c", "b", 2), ("b", "d", 1), ("c", "d", 8), ("x", "y", 1)])


def test_the_cheapest_way_need_not_have_the_fewest_edges():
    assert shortest_path(ROADS, "a", "d") == (6, ["a", "c", "b", "d"])


def test_the_way_to_where_one_is():
    assert shortest_path(ROADS, "a", "a") == (0, ["a"])


def test_there_may_be_no_way():
    with pytest.raises(NoPath, match="'a' to 'x'"):
        shortest_path(ROADS, "a", "x")


def test_directed_ways():
    graph = Graph([("a", "b", 1), ("b", "c", 1), ("c", "a", 1)], directed=True)
    assert shortest_path(graph, "b", "a") == (2, ["b", "c", "a"])


def test_nodes_need_no_order():
    graph = Graph([(1, "b", 1), (1, ("c",), 1), ("b", "z", 1), (("c",), "z", 1)])
    assert shortest_path(graph, 1, "z")[0] == 2


def test_reachable():
    assert reachable(ROADS, "a") == {"a": 0, "b": 1, "c": 1, "d": 2}
    assert reachable(ROADS, "a", limit=1) == {"a": 0, "b": 1, "c": 1}
    assert reachable(ROADS, "a", limit=0) == {"a": 0}


def test_components():
    assert components(ROADS) == [["a", "b", "c", "d"], ["x", "y"]]
    assert components(Graph([("x", "y"), ("a", "b"), ("b", "c")])) == [["a", "b", "c"], ["x", "y"]]
    assert components(Graph()) == []
    with pytest.raises(ValueError, match="undirected"):
        components(Graph(directed=True))


def test_topological_order():
    graph = Graph([("shirt", "tie"), ("tie", "jacket"), ("trousers", "shoes"), ("trousers", "jacket")], directed=True)
    assert topological_order(graph) == ["shirt", "tie", "trousers", "jacket", "shoes"]


def test_cycles_have_no_order():
    with pytest.raises(ValueError, match="cycle"):
        topological_order(Graph([("a", "b"), ("b", "a")], directed=True))
    with pytest.raises(ValueError, match="directed"):
        topological_order(Graph([("a", "b")]))


def test_cycles_are_found():
    graph = Graph([("a", "b"), ("b", "c"), ("c", "d"), ("d", "b")], directed=True)
    assert find_cycle(graph) == ["b", "c", "d", "b"]


def test_a_loop_is_a_cycle():
    assert find_cycle(Graph([("a", "a")], directed=True)) == ["a", "a"]


def test_two_ways_are_no_cycle():
    graph = Graph([("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")], directed=True)
    assert find_cycle(graph) is None


def test_spanning_tree():
    total, edges = spanning_tree(ROADS)
    assert total == 7
    assert sorted(edges) == [("a", "c", 3), ("b", "d", 1), ("c", "b", 2), ("x", "y", 1)] or len(edges) == 4
    assert sum(weight for _, _, weight in edges) == 7
