"""What a test runner's log says about each test: one parser per format, and which repository prints which.

The formats are facts about the runners and about how SWE-bench (swebench/harness/log_parsers, 5.0.2) and SWE-smith
(swesmith/harness/log_parsers.py) read them: the names of tests in their task files only match when a log is read in
the very same way, oddities included. Each parser takes a log and returns test name -> status.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from rollenv.errors import RollenvError, did_you_mean

PASSED, FAILED, ERROR, SKIPPED, XFAIL = "PASSED", "FAILED", "ERROR", "SKIPPED", "XFAIL"
STATUSES = (FAILED, PASSED, SKIPPED, ERROR, XFAIL)

Parser = Callable[[str], dict[str, str]]

_COUNT = re.compile(r"\[\d+\]")
_PARAMETERS = re.compile(r"(.*?)\[(.*)\]")
_COLOUR = re.compile(r"\[(\d+)m")
_CONTROL = str.maketrans("", "", "".join(map(chr, range(1, 32))))


def pytest_summary(log: str) -> dict[str, str]:
    """Lines `STATUS name ...` of pytest's short summary; the name ends at the first space."""
    return dict(_summary_words(log))


def _summary_words(log: str) -> list[tuple[str, str]]:
    """(name, status) of every summary line, in order. `SKIPPED [3] file:line` counts tests, and names none."""
    found = []
    for line in log.split("\n"):
        if line.startswith(STATUSES):
            words = (line.replace(" - ", " ") if line.startswith(FAILED) else line).split()
            if len(words) > 1 and not _counts_skips(words):
                found.append((words[1], words[0]))
    return found


def _counts_skips(words: list[str]) -> bool:
    return words[0] == SKIPPED and _COUNT.fullmatch(words[1]) is not None


def pytest_paths_shortened(log: str) -> dict[str, str]:
    """As `pytest_summary`; a parameter that is an absolute path is known by its last part."""
    return {_short(name): status for name, status in _summary_words(log)}


def _short(name: str) -> str:
    found = _PARAMETERS.search(name)
    if found is None:
        return name
    main, parameter = found.groups()
    if parameter.startswith("/") and not parameter.startswith("//") and "*" not in parameter:
        parameter = "/" + parameter.rpartition("/")[2]
    return f"{main}[{parameter}]"


def pytest_whole_names(log: str) -> dict[str, str]:
    """Summary lines whose names may have spaces, and older `name STATUS` lines; colours are taken out first."""
    found = {}
    for raw in log.split("\n"):
        line = _COLOUR.sub("", raw).translate(_CONTROL)
        if line.startswith(STATUSES):
            words = (line.split(" - ", 1)[0] if line.startswith(FAILED) else line).split()
            if len(words) > 1 and not _counts_skips(words):
                found[" ".join(words[1:])] = words[0]
        elif line.endswith(STATUSES):
            words = line.split()
            if len(words) > 1:
                found[" ".join(words[:-1])] = words[-1]
    return found


def pytest_mouse_buttons(log: str) -> dict[str, str]:
    """As `pytest_summary`, with matplotlib's mouse buttons as the numbers that its task files have."""
    return pytest_summary(log.replace("MouseButton.LEFT", "1").replace("MouseButton.RIGHT", "3"))


def seaborn(log: str) -> dict[str, str]:
    """`FAILED name`, `name PASSED [n%]`, or `PASSED name`."""
    found = {}
    for line in log.split("\n"):
        words = line.split()
        if len(words) < 2:
            continue
        if line.startswith(FAILED):
            found[words[1]] = FAILED
        elif f" {PASSED} " in line:
            if words[1] == PASSED:
                found[words[0]] = PASSED
        elif line.startswith(PASSED):
            found[words[1]] = PASSED
    return found


def sympy(log: str) -> dict[str, str]:
    """`test_name ok`, ` F` or ` E`; failures also as `____ path.py:test ____` headings."""
    headings = re.findall(r"(_*) (.*)\.py:(.*) (_*)", log)
    found = {f"{path}.py:{test}": FAILED for _, path, test, _ in headings}
    ends = {" E": ERROR, " F": FAILED, " ok": PASSED}
    for line in map(str.strip, log.split("\n")):
        if line.startswith("test_"):
            found |= {line.split()[0]: status for end, status in ends.items() if line.endswith(end)}
    return found


_DJANGO_OK = (" ... ok", " ... OK", " ...  OK")
_DJANGO_VERSION = "--version is equivalent to version"
_DJANGO_MIGRATION = "Applying sites.0002_alter_domain_unique...test_no_migrations"
_DJANGO_BROKEN_OFF = (  # a test's line that other output broke off, the `ok` on a line of its own
    re.compile(r"^(.*?)\s\.\.\.\sTesting\ against\ Django\ installed\ in\ ((?s:.*?))\ silenced\)\.\nok$", re.M),
    re.compile(r"^(.*?)\s\.\.\.\sInternal\ Server\ Error:\ \/(.*)\/\nok$", re.M),
    re.compile(r"^(.*?)\s\.\.\.\sSystem check identified no issues \(0 silenced\)\nok$", re.M),
)


def django(log: str) -> dict[str, str]:
    """unittest's `name (class) ... status` lines, as Django's runner prints them amid other output."""
    found: dict[str, str] = {}
    last = None
    for line in map(str.strip, log.split("\n")):
        if _DJANGO_VERSION in line:
            found[_DJANGO_VERSION] = PASSED
        if " ... " in line:
            last = line.split(" ... ")[0]
        found |= _django_line(line)
        if line.startswith("ok") and last is not None:
            found[last] = PASSED
    for pattern in _DJANGO_BROKEN_OFF:
        found |= {match.group(1): PASSED for match in pattern.finditer(log)}
    return found


def _django_line(line: str) -> dict[str, str]:
    found = {}
    for end in _DJANGO_OK:
        if line.endswith(end):
            whole = line.split("...", 1)[1].strip() if line.startswith(_DJANGO_MIGRATION) else line
            found[whole.rsplit(end, 1)[0]] = PASSED
            break
    if " ... skipped" in line:
        found[line.split(" ... skipped")[0]] = SKIPPED
    for word, status in (("FAIL", FAILED), ("ERROR", ERROR)):
        if line.endswith(f" ... {word}"):
            found[line.split(f" ... {word}")[0]] = status
        if line.startswith(f"{word}:") and len(line.split()) > 1:
            found[line.split()[1]] = status
    return found


def _lines(pattern: str) -> Parser:
    """A parser of lines that begin with a pattern with the groups `name` and `status`."""
    compiled = re.compile(pattern)

    def parse(log: str) -> dict[str, str]:
        matches = filter(None, map(compiled.match, log.split("\n")))
        return {match["name"]: _WORDS.get(match["status"], match["status"]) for match in matches}

    return parse


_WORDS = {"PASS": PASSED, "FAIL": FAILED, "SKIP": SKIPPED, "ok": PASSED}
_ANY = "(?P<status>" + "|".join(STATUSES) + ")"

pytest_progress = _lines(rf"(?P<name>\S+)\s+{_ANY}")
"""`name STATUS [n%]`, which `pytest --verbose` prints while it runs."""
pytest_rows = _lines(rf"{_ANY}\s(?P<name>\S+)")
pytest_workers = _lines(rf"\[gw\d\]\s{_ANY}\s(?P<name>\S+)")
gotest = _lines(r"\s*--- (?P<status>PASS|FAIL|SKIP): (?P<name>.+) \(.+\)\s*$")
slugify = _lines(r"(?P<name>[a-zA-Z0-9_\-,\.\s\(\)']+)\s\.{3}\s(?P<status>ok|FAIL|ERROR)$")


def tornado(log: str) -> dict[str, str]:
    """`name ... ok`, `name ... skipped`, and `FAIL: name (class)`."""
    found = {}
    for line in log.split("\n"):
        if line.endswith("... ok"):
            found[line.split(" ... ")[0]] = PASSED
        elif " ... skipped " in line:
            found[line.split(" ... ")[0]] = SKIPPED
        elif line.startswith(("ERROR:", "FAIL:")):
            found[" ".join(line.split()[1:3])] = FAILED
    return found


def mypy(log: str) -> dict[str, str]:
    """The last word of every line that says PASSED or FAILED."""
    found = {}
    for line in log.split("\n"):
        for status in (PASSED, FAILED):
            if status in line:
                found[line.split()[-1]] = status
                break
    return found


SWEBENCH: Mapping[str, Parser] = {
    "astropy/astropy": pytest_whole_names,
    "django/django": django,
    "marshmallow-code/marshmallow": pytest_summary,
    "matplotlib/matplotlib": pytest_mouse_buttons,
    "mwaskom/seaborn": seaborn,
    "pallets/flask": pytest_summary,
    "psf/requests": pytest_paths_shortened,
    "pvlib/pvlib-python": pytest_summary,
    "pydata/xarray": pytest_summary,
    "pydicom/pydicom": pytest_paths_shortened,
    "pylint-dev/astroid": pytest_summary,
    "pylint-dev/pylint": pytest_paths_shortened,
    "pytest-dev/pytest": pytest_summary,
    "pyvista/pyvista": pytest_summary,
    "scikit-learn/scikit-learn": pytest_whole_names,
    "sqlfluff/sqlfluff": pytest_summary,
    "sphinx-doc/sphinx": pytest_whole_names,
    "sympy/sympy": sympy,
}
"""By repository, for SWE-bench's instances; others are `pytest_summary`."""

SWESMITH: Mapping[str, Parser] = {
    "gin-gonic/gin": gotest,
    "HIPS/autograd": pytest_workers,
    "paramiko/paramiko": pytest_rows,
    "python/mypy": mypy,
    "tornadoweb/tornado": tornado,
    "un33k/python-slugify": slugify,
}
"""By repository, for SWE-smith's instances; others are `pytest_progress`."""

_BY_NAME: Mapping[str, Parser] = {
    **{name.rpartition("/")[2].replace("-", "_"): parser for name, parser in SWEBENCH.items()},
    "scikit": pytest_whole_names,
    "pvlib": pytest_summary,
    "pytest": pytest_summary,
    "pytest_v2": pytest_whole_names,
    "pytest_options": pytest_paths_shortened,
    "pytest_progress": pytest_progress,
    "gotest": gotest,
}
"""By the names that an instance's key `log_parser` has, without `parse_log_`."""


def parser_of(instance: Mapping[str, Any], smith: bool) -> Parser:
    """The parser for an instance's logs: the one that its key `log_parser` names, else its repository's.

    Raises:
        RollenvError: `log_parser` names none.
    """
    named = instance.get("log_parser")
    if named:
        short = str(named).removeprefix("parse_log_")
        if short not in _BY_NAME:
            raise RollenvError(
                f"instance '{instance.get('instance_id')}': no log parser '{named}'{did_you_mean(short, _BY_NAME)} "
                f"(known: {', '.join(sorted(_BY_NAME))})"
            )
        return _BY_NAME[short]
    if smith:
        return SWESMITH.get(_smith_repository(instance), pytest_progress)
    return SWEBENCH.get(str(instance.get("repo")), pytest_summary)


def _smith_repository(instance: Mapping[str, Any]) -> str:
    return str(instance.get("instance_id", "")).split(".")[0].replace("__", "/", 1)
