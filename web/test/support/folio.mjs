// The command line: `folio serve` on the fake device, which gives scripted answers, with a proxy that puts it below a
// path, and commands that end.

import { execFileSync, spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { createServer, request } from "node:http";
import { join } from "node:path";
import { root } from "./server.mjs";

const BINARY = process.env.FOLIO ?? join(process.env.CARGO_TARGET_DIR ?? join(root, "target"), "debug/folio");
const END = "<|im_end|>";

/** The environment without the developer's own settings, for a binary that exists. */
function environment() {
  if (!existsSync(BINARY)) throw new Error(`${BINARY} does not exist: build it with cargo build, or name it in FOLIO`);
  return Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith("FOLIO_")));
}

/** Runs a command to its end. */
export function run(options) {
  execFileSync(BINARY, options, { env: environment(), stdio: ["ignore", "ignore", "inherit"] });
}

/** Starts a server and resolves once it is ready. */
export async function start(options, port = 0) {
  const env = environment();
  const stdio = ["ignore", "ignore", "pipe"];
  const child = spawn(BINARY, ["serve", "--port", String(port), ...options], { env, stdio });
  const ended = new Promise((resolve) => child.on("exit", resolve));
  let said = "";
  const origin = await new Promise((resolve, reject) => {
    child.stderr.setEncoding("utf8").on("data", (text) => {
      said += text;
      const ready = /ready on (http:\/\/[^\s/]+)/.exec(said);
      if (ready) resolve(ready[1]);
    });
    void ended.then(() => reject(new Error(`the server ended: ${said}`)));
  });
  return {
    origin,
    port: Number(new URL(origin).port),
    /** Ends the server at once, in the middle of answers. */
    kill() {
      child.kill("SIGKILL");
      return ended;
    },
  };
}

/** The device's script by which the demo model gives these answers, one per turn of a conversation. */
export async function saying(answers) {
  const server = await start(["--device", "fake"]);
  const ids = async (prompt) => {
    const body = JSON.stringify({ prompt, add_special_tokens: false });
    const headers = { "content-type": "application/json" };
    const response = await fetch(`${server.origin}/tokenize`, { method: "POST", body, headers });
    return (await response.json()).tokens.join(".");
  };
  const parts = ["<|im_start|>assistant\n", ...answers.map((answer) => answer + END)].map(ids);
  const script = `say=${(await Promise.all(parts)).join(">")}`;
  await server.kill();
  return script;
}

/** A proxy in front of a server that serves it below a path such as `/sub/`. */
export async function below(path, target) {
  const proxy = createServer((incoming, outgoing) => {
    if (!incoming.url.startsWith(path)) return outgoing.writeHead(404).end();
    const { port, hostname } = new URL(target);
    const { method, headers } = incoming;
    const onward = request({ hostname, port, method, headers, path: incoming.url.slice(path.length - 1) }, (answer) => {
      outgoing.writeHead(answer.statusCode, answer.headers);
      answer.pipe(outgoing);
    });
    onward.on("error", () => outgoing.destroy());
    outgoing.on("close", () => onward.destroy());
    incoming.pipe(onward);
  });
  await new Promise((resolve) => proxy.listen(0, "127.0.0.1", resolve));
  return {
    url: `http://localhost:${proxy.address().port}${path}`,
    close() {
      proxy.closeAllConnections();
      return new Promise((resolve) => proxy.close(resolve));
    },
  };
}
