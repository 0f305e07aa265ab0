// The worker that owns the engine: a module worker of one page, or a shared worker of several. Each page has a port.
//
// Loading and every request are calls with an id. A response's body is sent in chunks as the page asks for them. A
// cancelled call, a closed page and an unload all drop the response, which cancels the request.

import {
  fromWire,
  BrowserError,
  EngineCrashedError,
  FolioError,
  ModelError,
  NoAdapterError,
  NetworkError,
  toWire,
} from "../errors.js";
import { ChangedError, ModelFiles } from "../files.js";
import { PIECES_AHEAD, type LoadResult, type ModelPlace, type ToPage, type ToWorker } from "../protocol.js";
import type { ModelInfo, Progress } from "../types.js";
import start, { __wbg_reset_state as restart, Sha256, WebEngine, type Call } from "./engine.js";

interface Running {
  engine: WebEngine;
  info: ModelInfo;
}

interface Port {
  postMessage(message: ToPage, transfer?: Transferable[]): void;
}

const scope = self as unknown as {
  onconnect?: unknown;
  folioCrashed: (message: string) => void;
  postMessage: Port["postMessage"];
};

const ports = new Set<PageSide>();
/** The engine's module, while it is compiled and afterwards. */
let started: Promise<unknown> | null = null;
let crashed = false;
let running: Promise<Running> | null = null;
let loading = new AbortController();

scope.folioCrashed = (message) => {
  crashed = true;
  end(new EngineCrashedError(message));
};

/** Compiles and starts the engine's module, once. */
async function instantiate(): Promise<void> {
  // After a crash its memory is in an unknown state, so a new instance takes its place.
  if (crashed) restart();
  crashed = false;
  started ??= start({ module_or_path: new URL("./engine_bg.wasm", import.meta.url) });
  try {
    await started;
  } catch (error) {
    // A failed fetch may succeed later.
    started = null;
    throw notStarted(error as Error);
  }
}

/** Why the module did not start, in words that say what to do. */
function notStarted({ name, message }: Error): Error {
  if (/unsafe-eval|content.security.policy/i.test(message)) {
    const advice = "the page's Content-Security-Policy must allow 'wasm-unsafe-eval' in script-src";
    return new BrowserError(`${advice}: ${message}`);
  }
  if (name === "CompileError" || name === "LinkError") {
    const needed = "the engine needs WebAssembly with SIMD: Chrome and Edge 91, Firefox 89, Safari 16.4 or later";
    return new BrowserError(`${needed}: ${message}`);
  }
  return new NetworkError(`engine_bg.wasm: ${message}`);
}

/** Reports to all pages that the engine has ended. */
function end(error: Error): void {
  running = null;
  for (const port of ports) port.gone(error);
}

// wgpu requests those features of a device that it knows, and `subgroups` is not among them.
if (typeof GPUAdapter !== "undefined") {
  const { requestDevice } = GPUAdapter.prototype;
  GPUAdapter.prototype.requestDevice = function (descriptor = {}) {
    const requiredFeatures = new Set(descriptor.requiredFeatures);
    if (this.features.has("subgroups")) requiredFeatures.add("subgroups");
    return requestDevice.call(this, { ...descriptor, requiredFeatures });
  };
}

/** A device to compute on. */
interface Chosen {
  device: "webgpu" | "cpu";
  /** Its name. */
  adapter: string;
  /** Whether it has WebGPU's feature `subgroups`. */
  subgroups: boolean;
}

const CPU: Chosen = { device: "cpu", adapter: "CPU", subgroups: false };

async function chooseAdapter(): Promise<Chosen> {
  const { gpu } = navigator;
  if (!gpu) {
    const secure = isSecureContext ? "" : " on a page that was not loaded over https or from localhost";
    throw new NoAdapterError(`this browser has no WebGPU${secure}; recent versions of Chrome, Edge and Safari have it`);
  }
  const adapter = await gpu.requestAdapter();
  if (!adapter)
    throw new NoAdapterError("this browser has WebGPU, but it offers no adapter: the GPU or its driver may be blocked");
  const { description, vendor, architecture, device } = adapter.info;
  const name = description || [vendor, architecture || device].filter(Boolean).join(" ") || "unknown adapter";
  return { device: "webgpu", adapter: name, subgroups: adapter.features.has("subgroups") };
}

async function chooseDevice(wanted: ModelPlace["device"]): Promise<Chosen> {
  if (!["auto", "webgpu", "cpu"].includes(wanted)) throw new FolioError(`device: ${wanted} is not auto, webgpu or cpu`);
  if (wanted === "cpu") return CPU;
  try {
    return await chooseAdapter();
  } catch (error) {
    if (wanted === "webgpu") throw error;
    return CPU;
  }
}

/** Resolves when the messages that wait have been handled. Timers would wait for milliseconds. */
function pause(): Promise<void> {
  return new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      port1.close();
      resolve();
    };
    port2.postMessage(null);
  });
}

async function load(place: ModelPlace, signal: AbortSignal, report: (progress: Progress) => void): Promise<Running> {
  const { device, adapter, subgroups } = await chooseDevice(place.device);
  await instantiate();
  for (let attempt = 1; ; attempt++) {
    const files = await ModelFiles.open(place, signal, report);
    const notices = files.notice === null ? [] : [files.notice];
    try {
      const { name, gguf, requested, limits, speculation } = place;
      const options = JSON.stringify({ name, device, subgroups, gguf, requested, speculation, ...limits });
      const note = (text: string) => void notices.push(text);
      const onProgress = (phase: "device" | "kernels", loaded: number, total: number) =>
        report({ phase, file: "", loaded, total });
      const engine = await WebEngine.load(
        files,
        options,
        onProgress,
        note,
        (message: string) => {
          end(fromWire({ name: "DeviceLostError", message }));
        },
        pause,
      );
      try {
        await files.complete(() => new Sha256());
      } catch (error) {
        engine.unload();
        throw error;
      }
      const info = { adapter, notices, ...JSON.parse(engine.info()) };
      report({ phase: "ready", file: "", loaded: info.weightBytes, total: info.weightBytes });
      return { engine, info };
    } catch (error) {
      const cause = files.error ?? error;
      if (!(cause instanceof ChangedError)) throw named(cause);
      await files.forgetAll();
      if (attempt === 2) throw new NetworkError(cause.message);
    }
  }
}

/** Errors of the engine's module have a name but no class. */
function named(error: unknown): unknown {
  if (error instanceof WebAssembly.RuntimeError) return new EngineCrashedError(error.message);
  return error instanceof Error && error.name !== "Error"
    ? error
    : new ModelError(String((error as Error)?.message ?? error));
}

/** The worker's connection to one page. */
class PageSide {
  private readonly calls = new Map<number, { call: Call | null; room: number; wake: () => void }>();
  private loaded = false;

  constructor(private readonly port: Port) {
    ports.add(this);
  }

  receive(message: ToWorker): void {
    switch (message.op) {
      case "hello":
        return void this.waitForEnd(message.lock);
      case "load":
        return this.answer(message.id, this.load(message.id, message.place));
      case "fetch":
        return void this.fetch(message);
      case "pull":
        return this.makeRoom(message.id);
      case "cancel":
        return this.cancel(message.id);
      case "stats":
        return this.answer(
          message.id,
          this.withEngine(({ engine }) => JSON.parse(engine.stats())),
        );
      case "import":
        return this.answer(message.id, this.import(message.url));
      case "unload":
        return this.answer(message.id, this.leave());
    }
  }

  /** The engine has ended. */
  gone(error: Error): void {
    this.calls.clear();
    this.loaded = false;
    this.port.postMessage({ op: "gone", error: toWire(error) });
  }

  private async load(id: number, place: ModelPlace): Promise<LoadResult> {
    const report = (progress: Progress) => this.port.postMessage({ id, op: "progress", progress });
    this.loaded = true;
    if (!running) {
      loading = new AbortController();
      const start = load(place, loading.signal, report);
      running = start;
      start.catch(() => running === start && (running = null));
    }
    return { info: (await running).info };
  }

  private async withEngine<T>(use: (running: Running) => T): Promise<T> {
    if (!running) throw new EngineCrashedError("no engine is loaded");
    return use(await running);
  }

  private async import(url: string): Promise<number> {
    const response = await fetch(url).catch((error: Error) => {
      throw new NetworkError(`${url}: ${error.message}`);
    });
    if (!response.ok) throw new NetworkError(`${url}: status ${response.status}`);
    const file = new Uint8Array(await response.arrayBuffer());
    return await this.withEngine(({ engine }) => engine.import_cache(url, file));
  }

  private async fetch({ id, method, url, headers, body }: ToWorker & { op: "fetch" }): Promise<void> {
    const state = { call: null as Call | null, room: PIECES_AHEAD, wake: () => {} };
    this.calls.set(id, state);
    const sink = {
      head: (status: number, headers: string[]) => this.send({ id, op: "head", status, headers }),
      chunk: async (bytes: Uint8Array) => {
        this.send({ id, op: "chunk", bytes }, [bytes.buffer]);
        state.room--;
        while (state.room <= 0) await new Promise<void>((resolve) => (state.wake = resolve));
      },
      end: () => this.finish(id, { id, op: "end" }),
      fail: (message: string) => this.finish(id, { id, op: "error", error: { name: "TypeError", message } }),
    };
    try {
      await this.withEngine(({ engine }) => {
        if (this.calls.has(id)) state.call = engine.fetch(method, url, headers, body, sink);
      });
    } catch (error) {
      this.finish(id, { id, op: "error", error: toWire(error) });
    }
  }

  private send(message: ToPage & { id: number }, transfer?: Transferable[]): void {
    if (this.calls.has(message.id)) this.port.postMessage(message, transfer);
  }

  private finish(id: number, message: ToPage & { id: number }): void {
    this.send(message);
    this.calls.get(id)?.call?.free();
    this.calls.delete(id);
  }

  private makeRoom(id: number): void {
    const state = this.calls.get(id);
    if (!state) return;
    state.room++;
    state.wake();
  }

  private cancel(id: number): void {
    this.calls.get(id)?.call?.cancel();
    this.calls.delete(id);
  }

  /** A page holds its lock until it closes. */
  private async waitForEnd(lock: string): Promise<void> {
    await navigator.locks.request(lock, () => {});
    await this.leave();
    ports.delete(this);
  }

  /** The page unloads the engine, or is closed. The last page ends the engine. */
  private async leave(): Promise<void> {
    for (const id of [...this.calls.keys()]) this.cancel(id);
    this.loaded = false;
    if ([...ports].some((port) => port.loaded)) return;
    loading.abort(new DOMException("the engine was unloaded", "AbortError"));
    const last = running;
    running = null;
    await last?.then(({ engine }) => engine.unload()).catch(() => {});
  }

  private answer(id: number, result: Promise<unknown>): void {
    result.then(
      (value) => this.port.postMessage({ id, op: "done", value }),
      (error) => this.port.postMessage({ id, op: "error", error: toWire(error) }),
    );
  }
}

function serve(port: Port & EventTarget): void {
  const page = new PageSide(port);
  port.addEventListener("message", (event) => page.receive((event as MessageEvent<ToWorker>).data));
}

if ("onconnect" in scope) {
  self.addEventListener("connect", (event) => {
    const [port] = (event as MessageEvent).ports;
    serve(port!);
    port!.start();
  });
} else {
  serve(scope as unknown as Port & EventTarget);
}
