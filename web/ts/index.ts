// Entry point of the package: `load()` starts the worker and returns an `Engine` with OpenAI's API.

import { fromApi, fromWire, UnloadedError } from "./errors.js";
import { checkOptions } from "./options.js";
import { findModel } from "./place.js";
import { PIECES_AHEAD, type LoadResult, type ModelPlace, type ToPage, type ToWorker } from "./protocol.js";
import { startWorker } from "./start.js";
import { removeModels } from "./store.js";
import { Stream } from "./stream.js";
import type * as api from "./types.js";

export * from "./errors.js";
export { cachedModels } from "./store.js";
export { Stream } from "./stream.js";
export type * from "./types.js";

/** Base URL of the API. It is only a name: no request leaves the page. */
const BASE = "http://folio/v1";

/** Loads a model and starts its engine in a worker. */
export async function load(options: api.LoadOptions): Promise<Engine> {
  checkOptions(options);
  const engine = new Engine(options);
  await engine.reload(options);
  return engine;
}

/**
 * Deletes what was downloaded: of one model, as `load()` takes it or as `cachedModels()` lists it; or of all models.
 * Does nothing where nothing is kept.
 */
export async function clearCache(
  model?: api.LoadOptions["model"] | api.CachedModel,
  { hub }: Pick<api.LoadOptions, "hub"> = {},
): Promise<void> {
  if (model === undefined) return await removeModels();
  if (typeof model === "object" && "id" in model) return await removeModels(model);
  const { key } = await findModel({ model, ...(hub && { hub }) });
  await removeModels({ key });
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
  /** Called once when the call has ended in whatever way. */
  over?: () => void;
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
    if (this.gone) fail(waiting, this.gone);
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
    if (op === "cancel") {
      this.calls.get(id)?.over?.();
      this.calls.delete(id);
    }
    if (!this.gone) this.port.postMessage({ id, op });
  }

  /** Ends every call, and the worker unless it is shared. */
  close(error: Error): void {
    if (this.gone) return;
    this.gone = error;
    for (const waiting of this.calls.values()) fail(waiting, error);
    this.calls.clear();
    this.letGo();
    if (this.worker) return this.worker.terminate();
    this.port.postMessage({ id: 0, op: "bye" } satisfies ToWorker);
    (this.port as MessagePort).close();
  }

  /**
   * A shared worker gets no event when a page closes, so it waits for a lock, which the page holds. Pages that were not
   * loaded over https have no locks: they say goodbye, which a page that crashes does not.
   */
  private async holdLock(): Promise<void> {
    if (!navigator.locks) {
      const bye = () => this.close(new UnloadedError("the page was closed"));
      globalThis.addEventListener?.("pagehide", bye);
      this.letGo = () => globalThis.removeEventListener?.("pagehide", bye);
      return;
    }
    const lock = `folio-page-${crypto.getRandomValues(new Uint32Array(4)).join("-")}`;
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
    else if (message.op === "end") end(waiting);
    else waiting.done?.(message.value as never);
  }
}

function fail(waiting: Waiting, error: Error): void {
  waiting.over?.();
  waiting.failed(error);
  waiting.body?.error(error);
}

function end(waiting: Waiting): void {
  waiting.over?.();
  waiting.body?.close();
}

/** A load that is running, and the calls that wait for it. */
class Loading {
  /** Ends the load with this error. */
  stop: (error: Error) => void = () => {};
  /** The worker, once it is started. */
  link: Link | null = null;
  /** Whether it has succeeded or failed. */
  ended = false;
  private stopped: Error | null = null;
  private readonly result: Promise<LoadResult>;
  private readonly watchers = new Set<(progress: api.Progress) => void>();
  private waiting = 0;

  constructor(run: (loading: Loading) => Promise<LoadResult>) {
    const stopped = new Promise<never>((_, reject) => {
      this.stop = (error) => {
        this.stopped ??= error;
        this.ended = true;
        reject(error);
      };
    });
    this.result = Promise.race([run(this), stopped]).finally(() => (this.ended = true));
    this.result.catch((error) => this.link?.close(error));
  }

  throwIfStopped(): void {
    if (this.stopped) throw this.stopped;
  }

  report(progress: api.Progress): void {
    for (const watcher of this.watchers) watcher(progress);
  }

  /** Waits for the load's end. A load that nobody waits for any more is ended. */
  async wait(signal?: AbortSignal | null, onProgress?: (progress: api.Progress) => void): Promise<LoadResult> {
    signal?.throwIfAborted();
    this.waiting++;
    // The same function may wait twice.
    const watcher = (progress: api.Progress) => onProgress?.(progress);
    this.watchers.add(watcher);
    let leave = () => {};
    const aborted = new Promise<never>((_, reject) => (leave = () => reject(signal?.reason)));
    signal?.addEventListener("abort", leave, { once: true });
    try {
      return await Promise.race([this.result, aborted]);
    } finally {
      signal?.removeEventListener("abort", leave);
      this.watchers.delete(watcher);
      if (--this.waiting === 0 && signal?.aborted) this.stop(signal.reason);
    }
  }
}

/** A loaded model. Created by {@link load}. */
export class Engine {
  /** The loaded model and its limits. */
  info!: api.ModelInfo;
  private link: Link | null = null;
  private loading: Loading | null = null;

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
      // One signal may serve many requests: it keeps nothing of those that have ended.
      const over = () => signal.removeEventListener("abort", stop);
      const stream = new ReadableStream<Uint8Array>(
        {
          start: (made) => void (controller = made),
          pull: () => link.tell(id, "pull"),
          cancel: () => link.tell(id, "cancel"),
        },
        { highWaterMark: PIECES_AHEAD },
      );
      const waiting: Waiting = {
        failed: reject,
        over,
        body: controller,
        head: (status, pairs) => {
          const answer = new Headers();
          for (let at = 0; at < pairs.length; at += 2) answer.append(pairs[at]!, pairs[at + 1]!);
          const empty = status === 204 || status === 304;
          resolve(new Response(empty ? null : stream, { status, headers: answer }));
        },
      };
      signal.addEventListener("abort", stop);
      const id = link.send({ op: "fetch", method: request.method, url: pathname + search, headers, body }, waiting, [
        body.buffer,
      ]);
    });
  };

  /**
   * Ends all answers, and a load that is running, and frees the GPU's memory. {@link reload} loads the engine again.
   */
  async unload(): Promise<void> {
    const { link, loading } = this;
    [this.link, this.loading] = [null, null];
    const unloaded = new UnloadedError("the engine was unloaded");
    loading?.stop(unloaded);
    if (link && !link.gone) await link.ask({ op: "unload" }).catch(() => {});
    link?.close(unloaded);
  }

  /**
   * Loads the model again, from the cache if there is one. For use after a lost device, a crash or an unload. Several
   * calls at once load it once.
   */
  async reload({ signal, onProgress }: Pick<api.LoadOptions, "signal" | "onProgress"> = {}): Promise<void> {
    signal?.throwIfAborted();
    const loading = (this.loading ??= new Loading((own) => this.run(own)));
    try {
      await loading.wait(signal, onProgress ?? this.options.onProgress);
    } finally {
      if (this.loading === loading && loading.ended) this.loading = null;
    }
  }

  /** Runs a load from its beginning to its end. */
  private async run(loading: Loading): Promise<LoadResult> {
    const old = this.link;
    this.link = null;
    if (old && !old.gone) await old.ask({ op: "unload" }).catch(() => {});
    old?.close(new UnloadedError("the engine is loaded again"));
    const place = await findModel(this.options);
    loading.throwIfStopped();
    const { link, notices } = connect(this.options, place);
    loading.link = link;
    const loaded = await link.ask<LoadResult>({ op: "load", place }, (progress) => loading.report(progress));
    loading.throwIfStopped();
    notices.push(...(await persisted(this.options)));
    [this.link, this.info] = [link, { ...loaded.info, notices: [...loaded.info.notices, ...notices] }];
    return loaded;
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

/** Starts a worker for this page, or connects to the site's shared worker for this model. */
function connect(options: api.LoadOptions, place: ModelPlace): { link: Link; notices: string[] } {
  const { port, worker, notices } = startWorker(options, place.key, (error) => link.close(error));
  const link = new Link(port, worker);
  return { link, notices };
}

/** Asks the browser to keep the site's storage, if the page wants that. Returns notices. */
async function persisted({ persist }: api.LoadOptions): Promise<string[]> {
  if (!persist) return [];
  const kept = await globalThis.navigator.storage?.persist?.().catch(() => false);
  return kept ? [] : ["this browser may delete the model when the disk is full: it has refused to keep it"];
}
