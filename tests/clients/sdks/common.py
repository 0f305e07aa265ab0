"""Shared parts of the scripts in this folder: the server's address, the questions, and the report.

    python SCRIPT.py http://127.0.0.1:8000

The server has the demo model, which knows few topics: it says hello, knows the weather as a tool, and little else.
Each script prints failures, then a last line `passed failed`.
"""

import sys
import traceback

BASE = sys.argv[1].rstrip("/") + "/v1"
MODEL = "folio-tiny"
HELLO = "Hello!"
HI = "Hi! What can I do for you?"
WEATHER = "What is the weather in Paris?"
# A tool's result in the form that the model was trained on, and the model's answer to it.
SUNNY = '{"temperature": 21, "condition": "sunny"}'
IT_IS_SUNNY = "It is 21 degrees and sunny in Paris."


def run(*checks):
    failed = 0
    for check in checks:
        try:
            check()
        except Exception:
            failed += 1
            print(f"{sys.argv[0]}: {check.__name__}")
            traceback.print_exc(limit=-3, file=sys.stdout)
    print(len(checks) - failed, failed)
