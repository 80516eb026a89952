import pytest

from stencil import Template, TemplateError, render


def test_text_stays():
    assert render("a { b } %} c") == "a { b } %} c"
    assert render("") == ""


def test_values():
    assert render("Hello {{ name }}!", name="Ann") == "Hello Ann!"
    assert render("{{a}}{{ b }}", a=1, b=None) == "1"
    assert render("{{ missing }}") == ""


def test_paths():
    assert render("{{ user.name }}", user={"name": "Ann"}) == "Ann"
    assert render("{{ list.1 }}{{ list.2 }}", list=["a", "b"]) == "b"
    assert render("{{ z.real }}", z=3 + 4j) == "3.0"
    assert render("{{ a.b.c }}", a={}) == ""


def test_comments_vanish():
    assert render("a{# note #}b") == "ab"


def test_escaping():
    assert render("{{ x }}", x='<a href="b">&') == "&lt;a href=&quot;b&quot;&gt;&amp;"
    assert render("{{ x | safe }}", x="<b>") == "<b>"
    assert Template("{{ x }}", autoescape=False).render(x="<b>") == "<b>"
    assert render("{{ x | safe | upper }}", x="<b>") == "&lt;B&gt;"


def test_conditions():
    source = "{% if a %}A{% elif b %}B{% else %}C{% end %}"
    assert [render(source, a=a, b=b) for a, b in ((1, 1), (0, 1), (0, 0))] == ["A", "B", "C"]
    assert render("{% if a %}A{% end %}.", a=[]) == "."


def test_negation_and_equality():
    assert render("{% if not a %}x{% end %}", a=0) == "x"
    assert render("{% if a == 3 %}x{% else %}y{% end %}", a=3) == "x"
    assert render('{% if a != "b" %}x{% else %}y{% end %}', a="b") == "y"
    assert render("{% if not a == -3 %}x{% end %}", a=-3) == ""


def test_loops():
    assert render("{% for i in items %}[{{ i }}]{% end %}", items=[1, 2]) == "[1][2]"
    assert render("{% for i in items %}x{% else %}none{% end %}", items=[]) == "none"
    assert render("{% for i in nothing %}x{% end %}") == ""


def test_loops_know_where_they_are():
    source = "{% for i in items %}{{ loop.index }}{{ i }}{% if not loop.last %}, {% end %}{% end %}"
    assert render(source, items="ab") == "1a, 2b"
    assert render("{% for i in items %}{% if loop.first %}{{ i }}{% end %}{% end %}", items="ab") == "a"


def test_nested_loops_see_outer_names():
    source = "{% for a in x %}{% for b in y %}{{ a }}{{ b }} {% end %}{% end %}{{ a }}"
    assert render(source, x="12", y="ab", a="!") == "1a 1b 2a 2b !"


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("a\n{% if x %}", "line 2: a block is not closed"),
        ("{% end %}", "closes nothing"),
        ("\n{% loop %}", "line 2: unknown tag 'loop'"),
        ("{% for x of y %}{% end %}", "unknown tag"),
        ("{% if %}{% end %}", "unknown tag"),
        ("{% for i in x %}{% elif y %}{% end %}", "expected 'end'"),
    ],
)
def test_templates_that_are_none(source, says):
    with pytest.raises(TemplateError, match=says):
        Template(source)
