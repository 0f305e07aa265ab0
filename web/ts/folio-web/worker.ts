// The worker that owns the engine: a module worker of one page, or a shared worker of several. Each page has a port.
//
// Loading and every request are calls with an id. A response's body is sent in chunks as the page asks for them. A
// cancelled call, a closed page and an unload all drop the response, which cancels the request.

import { fromWire, EngineCrashedError, ModelError, NetworkError, toWire } from "../errors.js";
import { PIECES_AHEAD, type LoadResult, type ModelPlace, type ToPage, type ToWorker } from "../protocol.js";
import type { ModelInfo, Progress } from "../types.js";
import { chooseDevice } from "./device.js";
import { ChangedError } from "./downloads.js";
import { Sha256, WebEngine, type Call } from "./engine.js";
import { ModelFiles } from "./files.js";
import { instantiate } from "./module.js";
import { Network } from "./network.js";

interface Running {
  engine: WebEngine;
  info: ModelInfo;
}

/** The engine that the pages of this worker use, while it is loaded and afterwards. */
interface Current {
  place: ModelPlace;
  running: Promise<Running>;
  /** Ends the load. */
  stop: AbortController;
  /** The last report, for pages that join. */
  progress: Progress | null;
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
let crashed = false;
let current: Current | null = null;

scope.folioCrashed = (message) => {
  crashed = true;
  end(new EngineCrashedError(message));
};

/** Reports to all pages that the engine has ended. */
function end(error: Error): void {
  current = null;
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

/** Loads a model. Files from the cache with which that fails are fetched anew, once; so are files that have changed. */
async function load(asked: ModelPlace, signal: AbortSignal, report: (progress: Progress) => void): Promise<Running> {
  for (let attempt = 1; ; attempt++) {
    const place = await decided(asked, signal, report);
    const files = await ModelFiles.open(place, signal, report);
    try {
      return await loadFrom(files, place, report);
    } catch (error) {
      const cause = files.reason(files.error ?? named(error)) as Error;
      const hasChanged = cause instanceof ChangedError;
      // Nothing that may be wrong is kept.
      const doubtful = hasChanged || ["ModelError", "IntegrityError"].includes(cause.name);
      if (doubtful) await files.forgetAll();
      if (doubtful && attempt === 1 && (hasChanged || files.cached)) continue;
      throw hasChanged ? new NetworkError(cause.message) : cause;
    }
  }
}

/** The location of a model of which the contents tell whether it is a GGUF file or a folder. */
async function decided(
  place: ModelPlace,
  signal: AbortSignal,
  report: (progress: Progress) => void,
): Promise<ModelPlace> {
  if (!place.folder) return place;
  const files = await ModelFiles.open(place, signal, report);
  return (await files.isGguf(place.gguf!)) ? place : { ...place, base: place.folder, gguf: null };
}

async function loadFrom(
  files: ModelFiles,
  { name, gguf, requested, limits, speculation, device: wanted }: ModelPlace,
  report: (progress: Progress) => void,
): Promise<Running> {
  const { device, adapter, subgroups, notice } = await chooseDevice(wanted);
  const notices = notice === null ? [] : [notice];
  await instantiate(crashed);
  crashed = false;
  const options = JSON.stringify({ name, device, subgroups, gguf, requested, speculation, ...limits });
  const note = (text: string) => void notices.push(text);
  const onProgress = (phase: "device" | "kernels", loaded: number, total: number) =>
    report({ phase, file: "", loaded, total });
  const lost = (message: string) => end(fromWire({ name: "DeviceLostError", message }));
  const engine = await WebEngine.load(files, options, onProgress, note, lost, pause);
  try {
    await files.complete(() => new Sha256());
  } catch (error) {
    engine.unload();
    throw error;
  }
  const info = { adapter, ...JSON.parse(engine.info()), notices: [...files.notices, ...notices] };
  report({ phase: "ready", file: "", loaded: info.weightBytes, total: info.weightBytes });
  return { engine, info };
}

/** Starts to load a model for all pages. */
function begin(place: ModelPlace): Current {
  const stop = new AbortController();
  const report = (progress: Progress) => {
    started.progress = progress;
    for (const port of ports) port.report(progress);
  };
  const started: Current = { place, stop, progress: null, running: load(place, stop.signal, report) };
  started.running.catch(() => current === started && (current = null));
  return started;
}

/** Notices about options of a page that the engine which it joins does not have. */
function differences(asked: ModelPlace, { place }: Current): string[] {
  const options = ({ name, cache, rangeBytes, speculation, device, limits }: ModelPlace): Record<string, unknown> => {
    const named = Object.entries(limits).map(([limit, value]) => [`limits.${limit}`, value]);
    return { name, cache, rangeBytes, speculation, device, ...Object.fromEntries(named) };
  };
  const [own, shared] = [options(asked), options(place)];
  const keys = [...new Set([...Object.keys(own), ...Object.keys(shared)])];
  const said = (value: unknown) => (value === undefined ? "its default" : JSON.stringify(value));
  return keys
    .filter((key) => own[key] !== shared[key])
    .map((key) => `${key}: the shared engine was loaded with ${said(shared[key])}, not ${said(own[key])}`);
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
  /** The call that waits for a load. */
  private loading: number | null = null;

  constructor(private readonly port: Port) {
    ports.add(this);
  }

  receive(message: ToWorker): void {
    switch (message.op) {
      case "hello":
        return void this.waitForEnd(message.lock);
      case "bye":
        return void this.close();
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

  /** The load of the engine goes on. */
  report(progress: Progress): void {
    if (this.loading !== null) this.port.postMessage({ id: this.loading, op: "progress", progress });
  }

  private async load(id: number, place: ModelPlace): Promise<LoadResult> {
    this.loaded = true;
    this.loading = id;
    const notices = current ? differences(place, current) : [];
    current ??= begin(place);
    if (current.progress) this.report(current.progress);
    try {
      const { info } = await current.running;
      return { info: { ...info, notices: [...info.notices, ...notices] } };
    } catch (error) {
      this.loaded = false;
      throw error;
    } finally {
      if (this.loading === id) this.loading = null;
    }
  }

  private async withEngine<T>(use: (running: Running) => T): Promise<T> {
    if (!current) throw new EngineCrashedError("no engine is loaded");
    return use(await current.running);
  }

  private async import(url: string): Promise<number> {
    if (!current) throw new EngineCrashedError("no engine is loaded");
    const network = new Network(new AbortController().signal, current.place.silenceMs);
    const response = await network.request(url, { file: url });
    if (!response.ok) throw new NetworkError(`${url}: status ${response.status}`);
    const file = await network.body(response).catch((error) => {
      throw network.failure(url, error);
    });
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
    await this.close();
  }

  private async close(): Promise<void> {
    await this.leave();
    ports.delete(this);
  }

  /** The page unloads the engine, or is closed. The last page ends the engine. */
  private async leave(): Promise<void> {
    for (const id of [...this.calls.keys()]) this.cancel(id);
    this.loaded = false;
    if (!current || [...ports].some((port) => port.loaded)) return;
    const { running, stop } = current;
    current = null;
    stop.abort(new DOMException("the engine was unloaded", "AbortError"));
    await running.then(({ engine }) => engine.unload()).catch(() => {});
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
