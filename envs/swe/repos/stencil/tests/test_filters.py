import pytest

from stencil import TemplateError, render


@pytest.mark.parametrize(
    ("source", "value", "text"),
    [
        ("{{ x | upper }}", "aB", "AB"),
        ("{{ x | lower }}", "aB", "ab"),
        ("{{ x | title }}", "ann lee", "Ann Lee"),
        ("{{ x | length }}", [1, 2], "2"),
        ("{{ x | first }}", "abc", "a"),
        ("{{ x | last }}", "abc", "c"),
        ("{{ x | first }}", [], ""),
        ("{{ x | last }}", [], ""),
        ("{{ x | join }}", [1, 2], "1, 2"),
        ('{{ x | join: " - " }}', "ab", "a - b"),
        ("{{ x | truncate: 4 }}", "abcdef", "abc…"),
        ("{{ x | truncate: 4 }}", "abcd", "abcd"),
        ("{{ x | truncate }}", "a" * 21, "a" * 19 + "…"),
        ('{{ x | default: "none" }}', None, "none"),
        ('{{ x | default: "none" }}', "", "none"),
        ('{{ x | default: "none" }}', 0, "0"),
        ("item{{ x | plural }}", 1, "item"),
        ("item{{ x | plural }}", 2, "items"),
        ("item{{ x | plural }}", 0, "items"),
        ('cit{{ x | plural: "y", "ies" }}', 3, "cities"),
        ("{{ x | join | upper }}", "ab", "A, B"),
    ],
)
def test_filters(source, value, text):
    assert render(source, x=value) == text


def test_unknown_filters_are_named():
    with pytest.raises(TemplateError, match="line 2: unknown filter 'shout'"):
        render("\n{{ x | shout }}", x=1)
