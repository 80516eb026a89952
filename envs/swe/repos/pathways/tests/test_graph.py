import pytest

from pathways import Graph


def test_an_undirected_edge_leads_both_ways():
    graph = Graph([("a", "b", 3)])
    assert (graph.weight("a", "b"), graph.weight("b", "a")) == (3, 3)
    assert graph.edges() == [("a", "b", 3)]


def test_a_directed_edge_leads_one_way():
    graph = Graph([("a", "b", 3)], directed=True)
    assert (graph.weight("a", "b"), graph.weight("b", "a")) == (3, None)


def test_edges_weigh_one_unless_told():
    assert Graph([("a", "b")]).weight("a", "b") == 1


def test_negative_weights_are_refused():
    with pytest.raises(ValueError, match="negative"):
        Graph([("a", "b", -1)])
    assert Graph([("a", "b", 0)]).weight("a", "b") == 0


def test_an_edge_is_replaced():
    graph = Graph([("a", "b", 3), ("b", "a", 5)])
    assert graph.edges() == [("a", "b", 5)]


def test_directed_edges_in_both_directions_are_two():
    graph = Graph([("a", "b", 3), ("b", "a", 5)], directed=True)
    assert graph.edges() == [("a", "b", 3), ("b", "a", 5)]


def test_a_loop_is_listed_once():
    assert Graph([("a", "a", 2)]).edges() == [("a", "a", 2)]


def test_removing_a_node_removes_its_edges():
    graph = Graph([("a", "b"), ("b", "c")])
    graph.remove_node("b")
    assert graph.nodes == ["a", "c"]
    assert graph.edges() == []
    with pytest.raises(KeyError):
        graph.remove_node("b")


def test_adding_a_node_again_keeps_its_edges():
    graph = Graph([("a", "b")])
    graph.add_node("a")
    assert graph.degree("a") == 1


def test_neighbours_are_a_copy():
    graph = Graph([("a", "b")])
    graph.neighbours("a").clear()
    assert graph.degree("a") == 1


def test_turning_round():
    graph = Graph([("a", "b", 2), ("b", "c", 3)], directed=True)
    graph.add_node("d")
    turned = graph.reversed()
    assert sorted(turned.edges()) == [("b", "a", 2), ("c", "b", 3)]
    assert turned.nodes == ["a", "b", "c", "d"]
    assert turned.directed
