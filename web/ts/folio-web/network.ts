// Requests for the files of a model: retries, silent connections, and what a failure means.

import { NetworkError } from "../errors.js";

/** Maximum attempts in a row that bring no byte. */
export const TRIES = 4;
const FIRST_PAUSE_MS = 250;

/** Bytes of a file, the last one included. */
export interface ByteRange {
  first: number;
  last: number;
}

/** What to request. */
interface Wanted {
  /** The file's name, for errors. */
  file: string;
  range?: ByteRange;
  method?: "GET" | "HEAD";
  /** Whether the whole file will do, where no request for a range gets an answer. */
  orWhole?: boolean;
}

/** Origins and paths that the page's Content Security Policy has refused in this worker. */
const refusedByPolicy = new Set<string>();
self.addEventListener?.("securitypolicyviolation", (event) => refusedByPolicy.add(event.blockedURI));

/** Sends the requests of one load. */
export class Network {
  /** A request is sent again. */
  onRetry: (file: string) => void = () => {};
  /** Whether a file of this load came whole after requests for a range of it had failed. */
  private hasTakenWhole = false;

  constructor(
    readonly signal: AbortSignal,
    private readonly silenceMs: number,
  ) {}

  /** Sends a request; retries on network errors and temporary server errors. */
  async request(url: string, wanted: Wanted): Promise<Response> {
    for (let attempt = 1; ; attempt++) {
      try {
        const response = await this.send(url, wanted);
        if ((response.status < 500 && response.status !== 429) || attempt === TRIES) return response;
        void response.body?.cancel();
      } catch (error) {
        this.signal.throwIfAborted();
        if (!isInterruption(error)) throw error;
        const whole = await this.whole(url, wanted, attempt);
        if (whole) return whole;
        if (attempt === TRIES || isHopeless(url)) throw await this.explained(url, wanted.file, error);
      }
      await this.pause(wanted.file, attempt);
    }
  }

  /** The chunks of a body. One that stays away too long is an interruption. */
  async *chunks(response: Response): AsyncGenerator<Uint8Array> {
    if (!response.body) return;
    const reader = response.body.getReader();
    try {
      for (;;) {
        const { done, value } = await this.inTime(reader.read());
        if (done) return;
        yield value;
      }
    } finally {
      // Frees the connection if the rest is not wanted.
      void reader.cancel().catch(() => {});
    }
  }

  /** The whole body of a small file. */
  async body(response: Response): Promise<Uint8Array> {
    const parts: Uint8Array[] = [];
    for await (const chunk of this.chunks(response)) parts.push(chunk);
    return new Uint8Array(await new Blob(parts as BlobPart[]).arrayBuffer());
  }

  /** Waits before another attempt. */
  async pause(file: string, attempt: number): Promise<void> {
    this.onRetry(file);
    await new Promise<void>((resolve, reject) => {
      const stop = () => {
        clearTimeout(timer);
        reject(this.signal.reason);
      };
      const go = () => {
        this.signal.removeEventListener("abort", stop);
        resolve();
      };
      const timer = setTimeout(go, FIRST_PAUSE_MS * 2 ** attempt);
      this.signal.addEventListener("abort", stop, { once: true });
    });
  }

  /** The error to report for a failed read: the abort, if there was one; an interruption as a NetworkError. */
  failure(file: string, error: unknown): unknown {
    if (this.signal.aborted) return this.signal.reason;
    return isInterruption(error) ? new NetworkError(`${file}: ${error.message}`) : error;
  }

  private async send(url: string, { range, method = "GET" }: Wanted): Promise<Response> {
    const headers: HeadersInit = range ? { Range: `bytes=${range.first}-${range.last}` } : {};
    const controller = new AbortController();
    const stop = () => controller.abort(this.signal.reason);
    if (this.signal.aborted) stop();
    this.signal.addEventListener("abort", stop, { once: true });
    try {
      // The browser's HTTP cache would keep a second copy.
      return await this.inTime(fetch(url, { method, headers, signal: controller.signal, cache: "no-store" }));
    } catch (error) {
      this.signal.removeEventListener("abort", stop);
      controller.abort(error);
      throw error;
    }
  }

  /**
   * The whole file, after a request for a range of it has failed. Browsers refuse to decode compressed ranges, and
   * report that like a broken connection. A large file that says nothing of a compression is more likely to come by
   * ranges, so it is taken whole only in the end.
   */
  private async whole(url: string, wanted: Wanted, attempt: number): Promise<Response | null> {
    if (!wanted.orWhole || !wanted.range || (attempt === 1 && !this.hasTakenWhole)) return null;
    const { file, range } = wanted;
    const response = await this.send(url, { file }).catch(() => null);
    if (!response) return null;
    const bytes = Number(response.headers.get("content-length") ?? 0);
    const compressed = response.headers.has("content-encoding");
    if (response.ok && (compressed || bytes <= range.last || attempt === TRIES)) {
      this.hasTakenWhole = true;
      return response;
    }
    void response.body?.cancel();
    return null;
  }

  private async inTime<T>(work: Promise<T>): Promise<T> {
    let timer: ReturnType<typeof setTimeout> | undefined;
    const late = new Promise<never>((_, reject) => {
      const silent = () => reject(new TypeError(`the server sent nothing for ${this.silenceMs / 1000} seconds`));
      timer = setTimeout(silent, this.silenceMs);
    });
    try {
      return await Promise.race([work, late]);
    } finally {
      clearTimeout(timer);
    }
  }

  /** A failed request's error in words that name the likely cause, which browsers do not tell. */
  private async explained(url: string, file: string, error: TypeError): Promise<NetworkError> {
    const failed = `${file}: ${error.message} (${url})`;
    const { origin, protocol } = new URL(url);
    if (isOffline()) return new NetworkError(`${failed}: this device is offline`);
    if (isRefusedByPolicy(url)) {
      return new NetworkError(`${failed}: the page's Content-Security-Policy must allow ${origin} in connect-src`);
    }
    if (protocol === "http:" && isSecureContext && self.origin.startsWith("https:")) {
      return new NetworkError(`${failed}: a page that was loaded over https cannot read addresses of http`);
    }
    if (origin === self.origin || !protocol.startsWith("http")) return new NetworkError(failed);
    const allow = `this page may read it only if its server sends Access-Control-Allow-Origin: ${self.origin}`;
    const found = (await this.answersOthers(url)) ? "the server answers, but" : "there may be no server;";
    return new NetworkError(`${failed}: ${found} ${allow}`);
  }

  /** Whether a server answers at all, to a request whose answer cannot be read. */
  private async answersOthers(url: string): Promise<boolean> {
    const controller = new AbortController();
    const init: RequestInit = { mode: "no-cors", cache: "no-store", signal: controller.signal };
    try {
      await this.inTime(fetch(url, init));
      return true;
    } catch {
      return false;
    } finally {
      controller.abort();
    }
  }
}

/** Browsers report a broken connection as a TypeError. */
export function isInterruption(error: unknown): error is TypeError {
  return error instanceof TypeError;
}

/** Whether another attempt at once cannot succeed. */
function isHopeless(url: string): boolean {
  return isRefusedByPolicy(url) || (isOffline() && new URL(url).protocol.startsWith("http"));
}

function isOffline(): boolean {
  return navigator.onLine === false;
}

function isRefusedByPolicy(url: string): boolean {
  const { origin } = new URL(url);
  return [...refusedByPolicy].some((refused) => refused === url || refused === origin);
}

/** The error for a response with a status of failure. `listed`: whether the file is of a repository. */
export function statusError(file: string, status: number, listed: boolean): NetworkError {
  const closed = status === 401 || status === 403;
  const why = closed ? ` (${listed ? "the repository may be private or gated" : "access is denied"})` : "";
  return new NetworkError(`${file}: the server responded with status ${status}${why}`);
}

/** `Content-Range: bytes 0-99/1234`, if the header can be read; a part of it that is unknown is null. */
export function contentRange(response: Response): { range: ByteRange | null; size: number | null } | null {
  const found = /^\s*bytes\s+(?:(\d+)-(\d+)|\*)\/(\d+|\*)\s*$/i.exec(response.headers.get("content-range") ?? "");
  if (!found) return null;
  const [, first, last, size] = found;
  return {
    range: first === undefined ? null : { first: Number(first), last: Number(last) },
    size: size === "*" ? null : Number(size),
  };
}

/** The number of bytes that a response says it has, if it can be known. */
export function announcedBytes(response: Response): number | null {
  const length = response.headers.get("content-length");
  return length === null || response.headers.has("content-encoding") ? null : Number(length);
}

/** Identifies the version of a file. */
export function version(response: Response): string | null {
  return response.headers.get("etag") ?? response.headers.get("last-modified");
}

/**
 * Bytes to skip at the beginning of a response to a request for a range, because the server began before it, as
 * proxies do that fetch whole blocks. Fails if the response has other bytes.
 */
export function surplus(file: string, response: Response, wanted: ByteRange): number {
  if (/^multipart\//i.test(response.headers.get("content-type") ?? "")) {
    throw new NetworkError(`${file}: the server sent several ranges where one was asked for`);
  }
  const asked = `${wanted.first}-${wanted.last}`;
  const sent = contentRange(response)?.range;
  if (sent && (sent.first > wanted.first || sent.last < wanted.first || sent.last < sent.first)) {
    throw new NetworkError(`${file}: the server sent bytes ${sent.first}-${sent.last} instead of ${asked}`);
  }
  const [bytes, expected] = [announcedBytes(response), sent ? sent.last - sent.first : wanted.last - wanted.first];
  if (bytes !== null && bytes > expected + 1) {
    throw new NetworkError(`${file}: the server sent ${bytes} bytes instead of bytes ${asked}`);
  }
  return sent ? wanted.first - sent.first : 0;
}
