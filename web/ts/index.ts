// Entry point of the package: `load()` starts the worker and returns an `Engine` with OpenAI's API.

import { BrowserError, fromApi, fromWire, FolioError, UnloadedError } from "./errors.js";
import { findModel } from "./place.js";
import { PIECES_AHEAD, type LoadResult, type ModelPlace, type ToPage, type ToWorker } from "./protocol.js";
import { Stream } from "./stream.js";
import type * as api from "./types.js";

export * from "./errors.js";
export { clearCache } from "./files.js";
export { Stream } from "./stream.js";
export type * from "./types.js";

/** Base URL of the API. It is only a name: no request leaves the page. */
const BASE = "http://folio/v1";

/** Loads a model and starts its engine in a worker. */
export async function load(options: api.LoadOptions): Promise<Engine> {
  const engine = new Engine(options);
  await engine.reload(options);
  return engine;
}

/** A message to the worker, without its id. */
type Call = ToWorker extends infer T ? (T extends { id: number } ? Omit<T, "id"> : never) : never;

/** The callbacks that wait for the worker's answer to one call. */
interface Waiting {
  done?: (value: never) => void;
  failed: (error: Error) => void;
  progress?: (progress: api.Progress) => void;
  head?: (status: number, headers: string[]) => void;
  body?: ReadableStreamDefaultController<Uint8Array>;
}

/** The page's connection to the worker. */
class Link {
  /** The error that ended the connection, if it has ended. */
  gone: Error | null = null;
  private readonly calls = new Map<number, Waiting>();
  private next = 1;
  private letGo = () => {};

  constructor(
    private readonly port: Worker | MessagePort,
    private readonly worker: Worker | null,
  ) {
    port.onmessage = (event: MessageEvent<ToPage>) => this.receive(event.data);
    if (!worker) void this.holdLock();
  }

  /** Sends a call; `waiting` receives the answer. */
  send(call: Call, waiting: Waiting, transfer: Transferable[] = []): number {
    const id = this.next++;
    if (this.gone) waiting.failed(this.gone);
    else {
      this.calls.set(id, waiting);
      this.port.postMessage({ ...call, id }, transfer);
    }
    return id;
  }

  /** Sends a call and awaits its value. */
  ask<T>(call: Call, progress?: Waiting["progress"]): Promise<T> {
    return new Promise((done, failed) => {
      this.send(call, { done: done as (value: never) => void, failed, ...(progress && { progress }) });
    });
  }

  /** Sends a message about a running call. */
  tell(id: number, op: "pull" | "cancel"): void {
    if (op === "cancel") this.calls.delete(id);
    if (!this.gone) this.port.postMessage({ id, op });
  }

  /** Ends every call, and the worker unless it is shared. */
  close(error: Error): void {
    if (this.gone) return;
    this.gone = error;
    for (const waiting of this.calls.values()) fail(waiting, error);
    this.calls.clear();
    this.letGo();
    this.worker?.terminate();
    if (!this.worker) (this.port as MessagePort).close();
  }

  /** A shared worker gets no event when a page closes, so it waits for this lock, which the page holds. */
  private async holdLock(): Promise<void> {
    const lock = `folio-page-${crypto.randomUUID()}`;
    await navigator.locks.request(lock, () => {
      if (!this.gone) this.port.postMessage({ id: 0, op: "hello", lock });
      return new Promise<void>((resolve) => (this.letGo = resolve));
    });
  }

  private receive(message: ToPage): void {
    if (message.op === "gone") return this.close(fromWire(message.error));
    const waiting = this.calls.get(message.id);
    if (!waiting) return;
    switch (message.op) {
      case "progress":
        return waiting.progress?.(message.progress);
      case "head":
        return waiting.head?.(message.status, message.headers);
      case "chunk":
        return waiting.body?.enqueue(message.bytes);
    }
    this.calls.delete(message.id);
    if (message.op === "error") fail(waiting, fromWire(message.error));
    else if (message.op === "end") waiting.body?.close();
    else waiting.done?.(message.value as never);
  }
}

function fail(waiting: Waiting, error: Error): void {
  waiting.failed(error);
  waiting.body?.error(error);
}

/** A loaded model. Created by {@link load}. */
export class Engine {
  /** The loaded model and its limits. */
  info!: api.ModelInfo;
  private link: Link | null = null;

  /** @internal */
  constructor(private readonly options: api.LoadOptions) {}

  readonly chat = {
    completions: {
      /** Answers a conversation, as one object or as an async iterable of chunks. */
      create: ((params: api.ChatRequest, options?: api.RequestOptions) =>
        this.create("/chat/completions", params, options)) as {
        (params: api.ChatParamsStreaming, options?: api.RequestOptions): Promise<Stream<api.ChatCompletionChunk>>;
        (params: api.ChatParamsWhole, options?: api.RequestOptions): Promise<api.ChatCompletion>;
        (
          params: api.ChatRequest,
          options?: api.RequestOptions,
        ): Promise<api.ChatCompletion | Stream<api.ChatCompletionChunk>>;
      },
    },
  };

  readonly completions = {
    /** Continues texts or token ids. */
    create: ((params: api.CompletionRequest, options?: api.RequestOptions) =>
      this.create("/completions", params, options)) as {
      (params: api.TextParamsStreaming, options?: api.RequestOptions): Promise<Stream<api.Completion>>;
      (params: api.TextParamsWhole, options?: api.RequestOptions): Promise<api.Completion>;
      (
        params: api.CompletionRequest,
        options?: api.RequestOptions,
      ): Promise<api.Completion | Stream<api.Completion>>;
    },
  };

  readonly responses = {
    /** Answers by the Responses API, as one object or as an async iterable of events. */
    create: ((params: api.ResponsesRequest, options?: api.RequestOptions) =>
      this.create("/responses", params, options)) as {
      (params: api.ResponseParamsStreaming, options?: api.RequestOptions): Promise<Stream<api.ResponseEvent>>;
      (params: api.ResponseParamsWhole, options?: api.RequestOptions): Promise<api.ResponseObject>;
      (
        params: api.ResponsesRequest,
        options?: api.RequestOptions,
      ): Promise<api.ResponseObject | Stream<api.ResponseEvent>>;
    },
    /** A response that was created with `store`. */
    retrieve: (id: string, options?: api.RequestOptions): Promise<api.ResponseObject> =>
      this.call("GET", `/responses/${encodeURIComponent(id)}`, undefined, options),
  };

  readonly embeddings = {
    /** Vectors of texts or token ids. */
    create: ((params: api.EmbeddingRequest, options?: api.RequestOptions) =>
      this.call("POST", "/embeddings", params, options)) as {
      (params: api.EmbeddingParamsBase64, options?: api.RequestOptions): Promise<api.EmbeddingList<string>>;
      (params: api.EmbeddingParams, options?: api.RequestOptions): Promise<api.EmbeddingList>;
    },
  };

  readonly models = {
    /** The names of the served model. */
    list: (options?: api.RequestOptions): Promise<api.ModelList> => this.call("GET", "/models", undefined, options),
    retrieve: (name: string, options?: api.RequestOptions): Promise<api.Model> =>
      this.call("GET", `/models/${name}`, undefined, options),
  };

  readonly cache = {
    /**
     * Loads the KV blocks of a prompt, as `folio cache export` has written them for this model: prompts that begin with
     * it are then not computed again. Resolves to the number of blocks.
     */
    import: async (url: string | URL): Promise<number> =>
      await this.worker().ask({ op: "import", url: new URL(url, globalThis.location?.href).href }),
  };

  /** Counters and gauges after the engine's last step. */
  async stats(): Promise<api.Stats> {
    return await this.worker().ask({ op: "stats" });
  }

  /**
   * The HTTP API of `folio serve` without a server. Pass it to OpenAI's client as its `fetch`. Only the path of a URL
   * matters.
   */
  readonly fetch = async (input: RequestInfo | URL, init?: RequestInit): Promise<Response> => {
    const request = new Request(input, init);
    const { signal } = request;
    const body = new Uint8Array(await request.arrayBuffer());
    signal.throwIfAborted();
    const link = this.worker();
    const { pathname, search } = new URL(request.url);
    const headers = [...request.headers].flat();
    return await new Promise((resolve, reject) => {
      let controller!: ReadableStreamDefaultController<Uint8Array>;
      const stop = () => {
        link.tell(id, "cancel");
        reject(signal.reason);
        controller.error(signal.reason);
      };
      const over = () => signal.removeEventListener("abort", stop);
      const stream = new ReadableStream<Uint8Array>(
        {
          start: (made) => void (controller = made),
          pull: () => link.tell(id, "pull"),
          cancel: () => {
            over();
            link.tell(id, "cancel");
          },
        },
        { highWaterMark: PIECES_AHEAD },
      );
      const waiting: Waiting = {
        failed: reject,
        body: controller,
        head: (status, pairs) => {
          const answer = new Headers();
          for (let at = 0; at < pairs.length; at += 2) answer.append(pairs[at]!, pairs[at + 1]!);
          const empty = status === 204 || status === 304;
          resolve(new Response(empty ? null : stream, { status, headers: answer }));
        },
      };
      const id = link.send({ op: "fetch", method: request.method, url: pathname + search, headers, body }, waiting, [
        body.buffer,
      ]);
      signal.addEventListener("abort", stop);
    });
  };

  /** Ends all answers and frees the GPU's memory. {@link reload} loads the engine again. */
  async unload(): Promise<void> {
    const { link } = this;
    this.link = null;
    if (link && !link.gone) await link.ask({ op: "unload" });
    link?.close(new UnloadedError("the engine was unloaded"));
  }

  /** Loads the model again, from the cache if there is one. For use after a lost device, a crash or an unload. */
  async reload({ signal, onProgress }: Pick<api.LoadOptions, "signal" | "onProgress"> = {}): Promise<void> {
    await this.unload();
    signal?.throwIfAborted();
    const place = findModel(this.options);
    const link = connect(this.options, place);
    const stop = () => link.close(signal!.reason);
    signal?.addEventListener("abort", stop);
    try {
      const loaded = await link.ask<LoadResult>({ op: "load", place }, onProgress ?? this.options.onProgress);
      [this.link, this.info] = [link, loaded.info];
    } catch (error) {
      link.close(error as Error);
      throw error;
    } finally {
      signal?.removeEventListener("abort", stop);
    }
  }

  private worker(): Link {
    if (!this.link) throw new UnloadedError("the engine is not loaded");
    return this.link;
  }

  private async create<T>(path: string, params: { stream?: boolean | null }, options?: api.RequestOptions): Promise<T> {
    if (!params.stream) return await this.call("POST", path, params, options);
    const response = await this.request("POST", path, params, options);
    return new Stream(response) as T;
  }

  private async call<T>(method: string, path: string, body: unknown, options?: api.RequestOptions): Promise<T> {
    return await (await this.request(method, path, body, options)).json();
  }

  private async request(method: string, path: string, body: unknown, options?: api.RequestOptions): Promise<Response> {
    const init: RequestInit = { method, signal: options?.signal ?? null };
    if (body !== undefined) {
      init.body = JSON.stringify(body);
      init.headers = { "Content-Type": "application/json" };
    }
    const response = await this.fetch(BASE + path, init);
    if (response.ok) return response;
    throw fromApi(response.status, await response.json().catch(() => null));
  }
}

/** The worker's path from this file, for pages without a bundler whose copy of this package is on another origin. */
const WORKER = "folio-web/worker.js";
const HERE = import.meta.url;

/** Starts a worker for this page, or connects to the site's shared worker for this model. */
function connect({ worker, shared }: api.LoadOptions, place: ModelPlace): Link {
  if (typeof Worker === "undefined") {
    const instead = "on a server or in Node, run `folio serve` and use its HTTP API";
    throw new BrowserError(`folio-web needs a browser's Web Workers, which are not here; ${instead}`);
  }
  if (shared && typeof SharedWorker === "undefined") throw new BrowserError("this browser lacks SharedWorker");
  const failed = (event: Event) => {
    const reason = (event as ErrorEvent).message ?? "its script did not load";
    return new FolioError(`the worker could not be started: ${reason}`);
  };
  if (shared) {
    const common = start(worker, sharedWorker(`folio ${place.key}`));
    const link = new Link(common.port, null);
    common.onerror = (event) => link.close(failed(event));
    return link;
  }
  const own = start(worker, ownWorker);
  const link = new Link(own, own);
  own.onerror = (event) => link.close(failed(event));
  return link;
}

/** Makes a worker, from the package's script or from that at `address`. */
type Make<W> = (address?: URL) => W;

// Bundlers find the worker's script by the form of these expressions. The name resolves twice: from this file to the
// file beside it, and as an export of this package. Vite's development server needs the latter: it moves this file into
// a folder of its own, where versions before 8 would look for a relative name.
const ownWorker: Make<Worker> = (address) =>
  address
    ? new Worker(address, { type: "module" })
    : new Worker(new URL("folio-web/worker.js", import.meta.url), { type: "module" });

/** Pages share the worker of the same name. */
const sharedWorker =
  (name: string): Make<SharedWorker> =>
  (address) =>
    address
      ? new SharedWorker(address, { type: "module", name })
      : new SharedWorker(new URL("folio-web/worker.js", import.meta.url), /* @vite-ignore */ { type: "module", name });

function start<W>(given: string | URL | undefined, make: Make<W>): W {
  if (given) return make(withPageOrigin(new URL(given, globalThis.location?.href)));
  try {
    return make();
  } catch (error) {
    if ((error as Error).name !== "SecurityError" || !HERE.startsWith("http")) throw error;
    return make(withPageOrigin(new URL(WORKER, HERE)));
  }
}

/** A worker's script must have the page's origin; its imports need not. */
function withPageOrigin(address: URL): URL {
  if (address.origin === globalThis.location?.origin || address.protocol === "blob:") return address;
  const script = new Blob([`import ${JSON.stringify(address.href)};`], { type: "text/javascript" });
  return new URL(URL.createObjectURL(script));
}
