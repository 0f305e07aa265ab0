"""A pytest plugin that selects the tests of a third-party suite and counts their results.

    CHOOSE_OUT=FILE          tests to skip: `file, function or start of an id  # reason`, `@marker  # reason`
    CHOOSE_ONLY=FILE         run only the tests in this file, which has the same format
    CHOOSE_ELSEWHERE=FILE    tests that run elsewhere and are not counted here, unless a longer line of CHOOSE_ONLY names
                             them
    CHOOSE_STALE=1           run only the skipped tests: those that pass should leave the list
    CHOOSE_COUNTS=FILE       receives `passed failed deselected`

A line that matches no test is an error, so that the lists stay up to date.
"""

import os

import pytest
from requests.structures import CaseInsensitiveDict


def lines(path):
    with open(path, encoding="utf-8") as file:
        for line in file:
            name, mark, reason = line.rstrip("\n").partition("  # ")
            if name and not name.startswith("#"):
                assert mark and reason.strip(), f"{path}: {name} has no reason"
                yield name


def fits(name, item):
    if name.startswith("@"):
        return item.get_closest_marker(name[1:]) is not None
    # A name that ends inside brackets matches all parameters with this prefix; any other is a whole file, class or
    # function.
    return item.nodeid.startswith(name) and ("[" in name or item.nodeid[len(name) :][:1] in ("", ":", "["))


def longest(names, item):
    return max((len(name) for name in names if fits(name, item)), default=0)


def listed(variable):
    path = os.environ.get(variable)
    return list(lines(path)) if path else []


unwanted, only, elsewhere = listed("CHOOSE_OUT"), listed("CHOOSE_ONLY"), listed("CHOOSE_ELSEWHERE")
counts = {"passed": 0, "failed": 0, "deselected": 0}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    found = [item for item in items if not only or longest(only, item) > 0]
    found = [item for item in found if longest(elsewhere, item) <= longest(only, item)]
    # With several runs, a name need not match a test in each of them.
    told = only + elsewhere if only else unwanted + elsewhere
    stale = [name for name in told if not any(fits(name, item) for item in items)]
    if stale:
        raise pytest.UsageError("these lines fit no test: " + "; ".join(stale))
    out = {item.nodeid for item in found if any(fits(name, item) for name in unwanted)}
    counts["deselected"] = len(out)
    keep_out = "CHOOSE_STALE" in os.environ
    kept = [item for item in found if (item.nodeid in out) == keep_out]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


def pytest_runtest_logreport(report):
    if report.failed:
        counts["failed"] += 1
    elif report.skipped:
        counts["deselected"] += 1
    elif report.when == "call":
        counts["passed"] += 1


def pytest_sessionfinish(session):
    if "CHOOSE_COUNTS" in os.environ:
        with open(os.environ["CHOOSE_COUNTS"], "w", encoding="utf-8") as file:
            print(counts["passed"], counts["failed"], counts["deselected"], file=file)


def pytest_collection_finish():
    """Header names are case-insensitive, but llama.cpp's suite expects the case that its own server writes."""
    try:
        import utils
    except ImportError:
        return
    ask = utils.ServerProcess.make_request

    def make_request(*arguments, **named):
        answer = ask(*arguments, **named)
        answer.headers = CaseInsensitiveDict(answer.headers)
        return answer

    utils.ServerProcess.make_request = make_request
