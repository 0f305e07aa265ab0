"""Checks /metrics with promtool, after a request. vLLM's names have colons, which it would not have.

    python promtool.py http://127.0.0.1:8000

Prints what promtool says, the number of metrics after `= `, then a last line `passed failed`.
"""

import json
import subprocess
import sys
import urllib.request

URL = sys.argv[1].rstrip("/")
COLONS = "metric names should not contain ':'"

body = json.dumps({"prompt": "Once upon a time", "max_tokens": 8}).encode()
request = urllib.request.Request(f"{URL}/v1/completions", body, {"content-type": "application/json"})
urllib.request.urlopen(request).read()
text = urllib.request.urlopen(f"{URL}/metrics").read()

check = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
said = (check.stdout + check.stderr).decode().splitlines()
wrong = [line for line in said if line.strip() and not line.endswith(COLONS)]
# 3: only lint. Without any line there was nothing to check.
names = {line.split()[0] for line in said if line.endswith(COLONS)}
if check.returncode not in (0, 3) or len(names) < 20:
    wrong.append(f"promtool ended with {check.returncode} and names {len(names)} metrics")
print("\n".join(wrong))
print(f"= {len(names)} metrics")
print(len(names), len(wrong))
