"""A pytest plugin: which tests of a foreign suite run, and how many of them held.

    CHOOSE_OUT=FILE          tests that do not run: `file, function or start of an id  # reason`, `@marker  # reason`
    CHOOSE_ONLY=FILE         run the tests of this file only, which is written likewise
    CHOOSE_ELSEWHERE=FILE    tests that run elsewhere, and do not count here
    CHOOSE_STALE=1           run what does not run otherwise: what passes should leave the list
    CHOOSE_COUNTS=FILE       gets `passed failed deselected`

A line that fits no test is an error, so that no list outlives its suite.
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
    # A name that stops inside brackets fits all values that begin so; any other is a whole file, class or function.
    return item.nodeid.startswith(name) and ("[" in name or item.nodeid[len(name) :][:1] in ("", ":", "["))


def listed(variable):
    path = os.environ.get(variable)
    return list(lines(path)) if path else []


unwanted, only, elsewhere = listed("CHOOSE_OUT"), listed("CHOOSE_ONLY"), listed("CHOOSE_ELSEWHERE")
counts = {"passed": 0, "failed": 0, "deselected": 0}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    found = [item for item in items if not only or any(fits(name, item) for name in only)]
    found = [item for item in found if not any(fits(name, item) for name in elsewhere)]
    # Those of one of several runs need not fit in each.
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
    """Names of headers know no case, but llama.cpp's suite asks for them in the case that its own server writes."""
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
