// Starts the engine's WebAssembly, and tells why it did not start.

import { BrowserError, NetworkError } from "../errors.js";
import { strangeContents } from "./contents.js";
import start, { __wbg_reset_state as restart } from "./engine.js";

const ADDRESS = new URL("./engine_bg.wasm", import.meta.url);
/** A module with one instruction of SIMD. */
const SIMD = Uint8Array.of(
  ...[0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0],
  ...[10, 10, 1, 8, 0, 65, 0, 253, 15, 253, 98, 11],
);

/** The engine's module, while it is compiled and afterwards. */
let started: Promise<unknown> | null = null;

/** Compiles and starts the engine's module, once. After a crash, of its memory nothing is known: it is started anew. */
export async function instantiate(crashed: boolean): Promise<void> {
  if (crashed) restart();
  started ??= start({ module_or_path: ADDRESS });
  try {
    await started;
  } catch (error) {
    // A failed fetch may succeed later.
    started = null;
    throw await notStarted(error as Error);
  }
}

/** Why the module did not start, in words that say what to do. */
async function notStarted({ name, message }: Error): Promise<Error> {
  if (/unsafe-eval|content.security.policy/i.test(message)) {
    const advice = "the page's Content-Security-Policy must allow 'wasm-unsafe-eval' in script-src";
    return new BrowserError(`${advice}: ${message}`);
  }
  if (!["CompileError", "LinkError"].includes(name)) {
    const where = message.includes(ADDRESS.href) ? "" : ` (${ADDRESS})`;
    return new NetworkError(`engine_bg.wasm: ${message}${where}`);
  }
  if (!WebAssembly.validate(SIMD)) {
    const needed = "the engine needs WebAssembly with SIMD: Chrome and Edge 91, Firefox 89, Safari 16.4 or later";
    return new BrowserError(`${needed}: ${message}`);
  }
  return new NetworkError(`engine_bg.wasm: ${ADDRESS} ${await faultOfFile(name)}: ${message}`);
}

/** What is wrong with the file, which this browser could compile if it were whole. */
async function faultOfFile(name: string): Promise<string> {
  const response = await fetch(ADDRESS).catch(() => null);
  const bytes = new Uint8Array((await response?.arrayBuffer().catch(() => null)) ?? new ArrayBuffer(0));
  const contents = response && strangeContents("engine_bg.wasm", response, bytes);
  if (contents) return `is not WebAssembly (the server sent ${contents})`;
  if (bytes.length > 0 && String.fromCharCode(...bytes.subarray(0, 4)) !== "\0asm") return "is not WebAssembly";
  return name === "LinkError" ? "is of another version than engine.js" : `is cut or damaged (${bytes.length} bytes)`;
}
