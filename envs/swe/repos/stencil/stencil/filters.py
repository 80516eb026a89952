"""What can be done to a value in a template."""

_ENTITIES = [("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;")]


def escape(value):
    """Text with the characters that mean something in HTML replaced."""
    text = str(value)
    for char, entity in _ENTITIES:
        text = text.replace(char, entity)
    return text


def truncate(value, width="20"):
    """At most `width` characters, the last of them `…` if something was cut off."""
    text, limit = str(value), int(width)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def default(value, other=""):
    """The other value where there is none."""
    return other if value is None or value == "" else value


def join(value, separator=", "):
    """Items as one text."""
    return separator.join(str(item) for item in value)


def plural(value, one="", many="s"):
    """One ending for exactly one, another for all other numbers."""
    return one if value == 1 else many


FILTERS = {
    "upper": lambda value: str(value).upper(),
    "lower": lambda value: str(value).lower(),
    "title": lambda value: str(value).title(),
    "length": len,
    "first": lambda value: value[0] if value else None,
    "last": lambda value: value[-1] if value else None,
    "truncate": truncate,
    "default": default,
    "join": join,
    "plural": plural,
}
