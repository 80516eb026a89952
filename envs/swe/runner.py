"""Runs pytest for a grader. Not imported: its text is sent into a sandbox that no agent has been in, as the program of
`python3 -I -B -`, with `JOBS` in front of it: a list of `{"root", "tests", "xml", "files", "timeout"}`.

The repository comes last on the path, after the standard library and pytest, which are imported before any of its
code runs; its configuration of pytest, its plugins and its bytecode are not looked at. What happened is in a JUnit file
whose name nobody was told. Each job is a process of its own, so that many trees can be tried without starting Python
again.
"""

import os
import resource
import signal
import sys

import pytest

OPTIONS = [
    *("-c", "/dev/null", "-p", "no:cacheprovider", "-q", "--no-header", "--tb=short", "--import-mode=append"),
    *("-o", "junit_family=xunit1", "-o", "junit_logging=no", "--continue-on-collection-errors"),
]


def lay_out(root, files):
    """Writes a tree."""
    for path, text in files.items():
        full = os.path.join(root, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w", encoding="utf-8", newline="") as file:
            file.write(text)


def run(job):
    """Runs the tests of one job in this process, and ends it."""
    lay_out(job["root"], job.get("files", {}))
    signal.alarm(int(job["timeout"]) + 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    os.chdir(job["root"])
    sys.path.append(job["root"])
    code = pytest.main([*OPTIONS, f"--rootdir={job['root']}", f"--junitxml={job['xml']}", *job["tests"]])
    sys.stdout.flush()
    os._exit(int(code))


def main(jobs):
    """Runs all, one after another, each in a child of its own."""
    for job in jobs:
        child = os.fork()
        if child == 0:
            run(job)
        os.waitpid(child, 0)


main(JOBS)  # noqa: F821 - put in front of this text
