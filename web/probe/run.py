#!/usr/bin/env python3
"""Runs the wasm probe in headless Chromium and compares its tokens with the demo model's reference.

Builds web/ for wasm32, runs wasm-bindgen (which must be installed in the version of Cargo.lock), serves the page on a
free loopback port, and opens it in Chromium on its software WebGPU adapter. Exit 0 when the greedy answer of the first
reference prompt comes back token for token.
"""

import functools
import http.server
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROBE = ROOT / "web" / "probe"
PACKAGE = ROOT / "web" / "pkg"
SECONDS_MAX = 240


def build() -> None:
    target = ["--target", "wasm32-unknown-unknown", "--release"]
    subprocess.run(["cargo", "build", "-p", "folio-web", *target], cwd=ROOT, check=True)
    wasm = ROOT / "target" / "wasm32-unknown-unknown" / "release" / "folio_web.wasm"
    subprocess.run(["wasm-bindgen", "--target", "web", "--out-dir", PACKAGE, wasm], check=True)


class Handler(http.server.SimpleHTTPRequestHandler):
    result = None
    arrived = threading.Event()

    def translate_path(self, path: str) -> str:
        if path.startswith("/pkg/"):
            return str(PACKAGE / pathlib.PurePosixPath(path).name)
        return super().translate_path(path)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        Handler.result = json.loads(body)
        self.send_response(204)
        self.end_headers()
        Handler.arrived.set()

    def log_message(self, *_: object) -> None:
        pass


def browse(url: str) -> None:
    chromium = shutil.which("chromium") or sys.exit("chromium is not installed")
    with tempfile.TemporaryDirectory() as profile:
        quiet = ["--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
        gpu = ["--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"]
        command = [chromium, "--headless", "--no-sandbox", f"--user-data-dir={profile}", *quiet, *gpu, url]
        browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            Handler.arrived.wait(SECONDS_MAX)
        finally:
            browser.terminate()
            browser.wait(20)


def check(result: dict) -> None:
    if "error" in result:
        sys.exit(result["error"])
    shaders, answer = result["shaders"], result["answer"]
    for message in shaders["messages"]:
        print(message, file=sys.stderr)
    if shaders["messages"]:
        sys.exit("the browser's compiler has something to say")
    print(f"{shaders['compiled']} shader variants compile; this adapter cannot show {len(shaders['unproven'])} more")
    reference = json.loads((ROOT / "assets" / "demo" / "recipe" / "golden.json").read_text())["prompts"][0]
    if answer["error"] or answer["token_ids"] != reference["greedy_ids"]:
        sys.exit(f"expected token ids {reference['greedy_ids']}, got {answer}")
    print("the tab's tokens equal the reference")


def main() -> None:
    build()
    handler = functools.partial(Handler, directory=str(PROBE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browse(f"http://127.0.0.1:{server.server_address[1]}/index.html")
        server.shutdown()
    check(Handler.result or {"error": f"no result within {SECONDS_MAX} s"})


if __name__ == "__main__":
    main()
