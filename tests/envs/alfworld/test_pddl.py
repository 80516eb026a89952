"""PDDL is read as planners read it, and domains of equal meaning are equal."""

from __future__ import annotations

import pytest

from rollenv.envs.alfworld.compiler import own_domain
from rollenv.envs.alfworld.pddl import FALSE, PddlError, canonical, parse, read_domain, read_problem, typed


def test_comments_and_cases_do_not_matter() -> None:
    assert parse("(A (b ; not this )\n c))") == ["a", ["b", "c"]]


@pytest.mark.parametrize("text", ["", "word", "(a", "(a))", "(a) (b)"])
def test_what_is_not_one_expression_is_refused(text: str) -> None:
    with pytest.raises(PddlError):
        parse(text)


def test_a_typed_list_gives_every_name_its_type() -> None:
    assert list(typed(["a", "b", "-", "t", "c"])) == [("a", "t"), ("b", "t"), ("c", "object")]


def test_order_and_nesting_of_conjunctions_do_not_matter() -> None:
    one = canonical(parse("(and (p ?a) (and (q ?b) (r)))"), {"t"})
    other = canonical(parse("(and (r) (q ?b) (p ?a))"), {"t"})
    assert one == other == ["and", ["p", "?a"], ["q", "?b"], ["r"]]


def test_costs_do_not_matter() -> None:
    assert canonical(parse("(and (p) (increase (total-cost) 5))"), set()) == ["p"]


def test_names_of_quantified_variables_do_not_matter() -> None:
    one, other = (canonical(parse(f"(exists (?{name} - t) (p ?{name} ?free))"), {"t"}) for name in "xy")
    assert one == other


def test_a_quantifier_over_a_type_that_nothing_has_is_never_satisfied() -> None:
    # The comma belongs to the type's name, so that no location is of this type.
    text = "(or (holds ?o) (exists (?l - location, ?r - receptacle) (at ?l ?r)))"
    assert canonical(parse(text), {"location", "receptacle"}) == ["holds", "?o"]
    assert canonical(parse("(exists (?l - nothing) (p ?l))"), {"t"}) == FALSE


def test_the_own_domain_equals_itself_in_another_order_and_other_spacing() -> None:
    text = own_domain()
    moved = text.replace(
        "(and (opened ?r) (checked ?r))", "(and (checked ?r)\n  (opened ?r) (increase (total-cost) 1))"
    )
    assert moved != text
    assert read_domain(moved) == read_domain(text)


def test_a_domain_that_means_something_else_differs() -> None:
    text = own_domain()
    assert read_domain(text.replace("(not (holdsAny ?a)) (or", "(or")) != read_domain(text)


def test_a_problem_gives_its_objects_facts_and_goal() -> None:
    problem = read_problem("(define (problem p) (:objects a - t) (:init (p a) (p a) (q)) (:goal (and (p a))))")
    assert problem.objects == {"a": "t"}
    assert problem.facts == {"p": [("a",), ("a",)], "q": [()]}
    assert problem.goal == ["and", ["p", "a"]]


@pytest.mark.parametrize("text", ["(problem)", "(define (:init) (:objects))", "(define (:objects) (:goal (a)))"])
def test_a_problem_without_its_parts_is_refused(text: str) -> None:
    with pytest.raises(PddlError):
        read_problem(text)
