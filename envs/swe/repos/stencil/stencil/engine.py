"""Text with {{ expressions }} and {% blocks %} to text."""

import re

from stencil.filters import FILTERS, escape

_TAG = re.compile(r"\{\{(.*?)\}\}|\{%(.*?)%\}|\{#.*?#\}", re.DOTALL)
_ARGUMENT = re.compile(r'"([^"]*)"|([^\s,"]+)')


class TemplateError(ValueError):
    """A template that is none; the message has the line."""


class Template:
    """A parsed template. Values are escaped unless `autoescape` is off or their last filter is `safe`."""

    def __init__(self, source, autoescape=True):
        self.autoescape = autoescape
        self._parts = self._pieces(source)
        self._at = 0
        self._tree = self._block(None)

    def render(self, **values):
        """The text for some values."""
        out = []
        self._run(self._tree, [values], out)
        return "".join(out)

    # -- parsing

    @staticmethod
    def _pieces(source):
        pieces = []
        at = 0
        for match in _TAG.finditer(source):
            if match.start() > at:
                pieces.append(("text", source[at : match.start()], 0))
            line = source.count("\n", 0, match.start()) + 1
            if match.group(1) is not None:
                pieces.append(("value", match.group(1).strip(), line))
            elif match.group(2) is not None:
                pieces.append(("tag", match.group(2).strip(), line))
            at = match.end()
        if at < len(source):
            pieces.append(("text", source[at:], 0))
        return pieces

    def _block(self, opened):
        nodes = []
        while self._at < len(self._parts):
            kind, content, line = self._parts[self._at]
            if kind == "tag" and content.split()[:1] and content.split()[0] in ("end", "else", "elif"):
                if opened is None:
                    raise TemplateError(f"line {line}: '{content}' closes nothing")
                return nodes
            self._at += 1
            if kind == "text":
                nodes.append(("text", content))
            elif kind == "value":
                nodes.append(("value", content, line))
            else:
                nodes.append(self._tag(content, line))
        if opened is not None:
            raise TemplateError(f"line {opened}: a block is not closed")
        return nodes

    def _tag(self, content, line):
        words = content.split()
        if words[:1] == ["if"] and len(words) >= 2:
            return self._if(content[2:].strip(), line)
        if words[:1] == ["for"] and len(words) == 4 and words[2] == "in":
            body = self._block(line)
            other = []
            if self._parts[self._at][1] == "else":
                self._at += 1
                other = self._block(line)
            self._end(line)
            return ("for", words[1], words[3], body, other, line)
        raise TemplateError(f"line {line}: unknown tag '{content}'")

    def _if(self, condition, line):
        branches = [(condition, self._block(line))]
        other = []
        while True:
            content = self._parts[self._at][1]
            if content.startswith("elif"):
                self._at += 1
                branches.append((content[4:].strip(), self._block(line)))
            elif content == "else":
                self._at += 1
                other = self._block(line)
            else:
                break
        self._end(line)
        return ("if", branches, other, line)

    def _end(self, line):
        if self._parts[self._at][1] != "end":
            raise TemplateError(f"line {line}: expected 'end'")
        self._at += 1

    # -- rendering

    def _run(self, nodes, scopes, out):
        for node in nodes:
            if node[0] == "text":
                out.append(node[1])
            elif node[0] == "value":
                value, safe = self._evaluate(node[1], scopes, node[2])
                text = "" if value is None else str(value)
                out.append(text if safe or not self.autoescape else escape(text))
            elif node[0] == "if":
                _, branches, other, line = node
                for condition, body in branches:
                    if self._true(condition, scopes, line):
                        self._run(body, scopes, out)
                        break
                else:
                    self._run(other, scopes, out)
            else:
                self._loop(node, scopes, out)

    def _loop(self, node, scopes, out):
        _, name, expression, body, other, line = node
        items = list(self._evaluate(expression, scopes, line)[0] or [])
        for index, item in enumerate(items):
            loop = {"index": index + 1, "first": index == 0, "last": index == len(items) - 1}
            self._run(body, [*scopes, {name: item, "loop": loop}], out)
        if not items:
            self._run(other, scopes, out)

    def _true(self, condition, scopes, line):
        if condition.startswith("not "):
            return not self._true(condition[4:], scopes, line)
        for sign, same in ((" == ", True), (" != ", False)):
            left, found, right = condition.partition(sign)
            if found:
                values = [self._evaluate(side.strip(), scopes, line)[0] for side in (left, right)]
                return (values[0] == values[1]) is same
        return bool(self._evaluate(condition, scopes, line)[0])

    def _evaluate(self, expression, scopes, line):
        first, *names = [part.strip() for part in expression.split("|")]
        value = self._look_up(first, scopes)
        safe = False
        for part in names:
            name, _, rest = part.partition(":")
            if name == "safe":
                safe = True
                continue
            if name not in FILTERS:
                raise TemplateError(f"line {line}: unknown filter '{name}'")
            arguments = [quoted or plain for quoted, plain in _ARGUMENT.findall(rest)]
            value = FILTERS[name](value, *arguments)
            safe = False
        return value, safe

    @staticmethod
    def _look_up(path, scopes):
        if len(path) >= 2 and path[0] == path[-1] == '"':
            return path[1:-1]
        if path.lstrip("-").isdigit():
            return int(path)
        name, *rest = path.split(".")
        value = None
        for scope in reversed(scopes):
            if name in scope:
                value = scope[name]
                break
        for key in rest:
            if isinstance(value, dict):
                value = value.get(key)
            elif isinstance(value, (list, tuple)) and key.isdigit():
                value = value[int(key)] if int(key) < len(value) else None
            else:
                value = getattr(value, key, None)
        return value


def render(source, **values):
    """A template's text for some values."""
    return Template(source).render(**values)
