// The files of a model. They are fetched by range requests and cached slice by slice in the browser's storage; a file
// is never whole in memory. Files that the user has chosen are read where they are.
//
// A file is divided into slices, one range request each. Each slice is a separate file in the origin-private file
// system and is written atomically, so that an interrupted download is resumed at the first missing slice. A folder
// that was loaded once is read without any request.

import { IntegrityError, MissingFileError, NetworkError, QuotaError } from "./errors.js";
import type { ModelPlace } from "./protocol.js";
import type { Progress } from "./types.js";

/** Number of slices kept in memory, because slices hold several tensors and matrices are read in pieces. */
const SLICES_IN_MEMORY = 3;
/** Maximum attempts of one request; the bytes received are kept between them. */
const TRIES = 4;
const FIRST_PAUSE_MS = 250;
/** Name of the hub's list of files in the storage; no file of a model begins like this. */
const LISTING = "/listing";
const QUOTA_ADVICE = 'free some, or load with cache: "none"';

/** Metadata of a file. */
interface Facts {
  size: number;
  /** Identifies the file's version, as far as the server's headers can be read. */
  version: string | null;
  /** Hexadecimal SHA-256, if the hub lists one. */
  sha256: string | null;
  /** Whether the digest was verified. */
  verified: boolean;
}

/** A file as the hub lists it. */
interface Listed {
  path: string;
  size: number;
  sha256: string | null;
}

/** A file changed on the server during the download. */
export class ChangedError extends Error {}

/** An incremental digest, implemented by the engine's module. */
export interface Digest {
  update(bytes: Uint8Array): void;
  hex(): string;
}

/** Slices and metadata by file name, and the hub's list of files. */
interface Store {
  listing(): Promise<Listed[] | undefined>;
  setListing(listing: Listed[]): Promise<void>;
  facts(file: string): Promise<Facts | null | undefined>;
  setFacts(file: string, facts: Facts | null): Promise<void>;
  slice(file: string, index: number): Promise<Blob | undefined>;
  setSlice(file: string, index: number, bytes: Uint8Array): Promise<void>;
  remove(file: string): Promise<void>;
}

/** Stores no slices, except of files whose server ignores ranges: those are kept as blobs until the load ends. */
class NoStore implements Store {
  private readonly kept = new Map<string, Blob>();
  private readonly known = new Map<string, Facts | null>();
  private readonly keepSlices = new Set<string>();

  listing = async () => undefined;
  setListing = async () => {};
  facts = async (file: string) => this.known.get(file);
  setFacts = async (file: string, facts: Facts | null) => void this.known.set(file, facts);
  slice = async (file: string, index: number) => this.kept.get(`${index}/${file}`);
  remove = async (file: string) => {
    this.known.delete(file);
    for (const key of this.kept.keys()) if (key.endsWith(`/${file}`)) this.kept.delete(key);
  };
  setSlice = async (file: string, index: number, bytes: Uint8Array) => {
    // The browser holds a blob's bytes and may put them on disk.
    if (this.keepSlices.has(file)) this.kept.set(`${index}/${file}`, new Blob([bytes as BlobPart]));
  };
  keep(file: string): void {
    this.keepSlices.add(file);
  }
}

/** The origin-private file system. */
class OpfsStore implements Store {
  private constructor(private readonly folder: FileSystemDirectoryHandle) {}

  /** `null` if the storage is unavailable, as in some private windows, or cannot be written, as in Safari before 26. */
  static async open(key: string): Promise<OpfsStore | null> {
    try {
      if (!("createWritable" in FileSystemFileHandle.prototype)) return null;
      const root = await navigator.storage.getDirectory();
      const models = await root.getDirectoryHandle("folio", { create: true });
      return new OpfsStore(await models.getDirectoryHandle(await folderName(key), { create: true }));
    } catch {
      return null;
    }
  }

  async listing(): Promise<Listed[] | undefined> {
    const blob = await this.get(LISTING);
    return blob && JSON.parse(await blob.text());
  }

  setListing(listing: Listed[]): Promise<void> {
    return this.put(LISTING, new TextEncoder().encode(JSON.stringify(listing)));
  }

  async facts(file: string): Promise<Facts | null | undefined> {
    const blob = await this.get(`${file}.json`);
    return blob && JSON.parse(await blob.text());
  }

  setFacts(file: string, facts: Facts | null): Promise<void> {
    return this.put(`${file}.json`, new TextEncoder().encode(JSON.stringify(facts)));
  }

  slice(file: string, index: number): Promise<Blob | undefined> {
    return this.get(`${file}.${index}`);
  }

  setSlice(file: string, index: number, bytes: Uint8Array): Promise<void> {
    return this.put(`${file}.${index}`, bytes);
  }

  async remove(file: string): Promise<void> {
    const own = /^(json|\d+)$/;
    const prefix = `${encodeURIComponent(file)}.`;
    const names: string[] = [];
    for await (const name of (this.folder as unknown as { keys(): AsyncIterable<string> }).keys()) {
      if (name.startsWith(prefix) && own.test(name.slice(prefix.length))) names.push(name);
    }
    for (const name of names) await this.folder.removeEntry(name);
  }

  private async get(name: string): Promise<Blob | undefined> {
    try {
      return await (await this.folder.getFileHandle(encodeURIComponent(name))).getFile();
    } catch {
      return undefined;
    }
  }

  private async put(name: string, bytes: Uint8Array): Promise<void> {
    try {
      const handle = await this.folder.getFileHandle(encodeURIComponent(name), { create: true });
      const stream = await handle.createWritable();
      await stream.write(bytes as unknown as FileSystemWriteChunkType);
      await stream.close();
    } catch (error) {
      if ((error as Error).name !== "QuotaExceededError") throw error;
      const { usage = 0 } = await navigator.storage.estimate();
      const words = `${name}: ${mib(bytes.length)} more do not fit in this site's storage, which holds ${mib(usage)}`;
      throw new QuotaError(`${words}; ${QUOTA_ADVICE}`);
    }
  }
}

/** Deletes everything that was downloaded. */
export async function clearCache(): Promise<void> {
  const root = await navigator.storage.getDirectory();
  await root.removeEntry("folio", { recursive: true }).catch(() => {});
}

async function folderName(key: string): Promise<string> {
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(key));
  return [...new Uint8Array(digest)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The files of one model, as the engine reads them. */
export class ModelFiles {
  /** The first error of a read; the engine keeps only its message. */
  error: unknown;
  /** What the user should know, if the cache was asked for and there is none. */
  notice: string | null = null;
  private readonly memory = new Map<string, Uint8Array>();
  private readonly known = new Map<string, Facts | null>();
  private listed: Listed[] | null = null;
  private readonly fetched = new Map<string, number>();
  private readonly sliceBytes: number;

  private constructor(
    private readonly place: ModelPlace,
    private readonly store: Store,
    private readonly signal: AbortSignal,
    private readonly onProgress: (progress: Progress) => void,
  ) {
    this.sliceBytes = place.rangeBytes;
  }

  static async open(
    place: ModelPlace,
    signal: AbortSignal,
    onProgress: (progress: Progress) => void,
  ): Promise<ModelFiles> {
    const opfs = place.cache === "opfs" ? await OpfsStore.open(`${place.rangeBytes} ${place.key}`) : null;
    const files = new ModelFiles(place, opfs ?? new NoStore(), signal, onProgress);
    if (place.cache === "opfs" && !opfs) {
      files.notice = "this browser keeps no files here (private window, or no OPFS): every load downloads the model";
    }
    return files;
  }

  /** Names of all files; `undefined` if they are not known. Called by the engine. */
  names(): Promise<string[] | undefined> {
    return this.noted(async () => {
      if (this.place.files) return Object.keys(this.place.files);
      if (!this.place.listing) return undefined;
      const listed = (await this.store.listing()) ?? (await this.list());
      return listed.map(({ path }) => path);
    });
  }

  /** Size of a file in bytes; `undefined` if it does not exist. Called by the engine. */
  size(file: string): Promise<number | undefined> {
    return this.noted(async () => this.chosen(file)?.size ?? (await this.facts(file))?.size);
  }

  /** Reads bytes of an existing file. Called by the engine. */
  read(file: string, start: number, end: number): Promise<Uint8Array> {
    return this.noted(async () => {
      const chosen = this.chosen(file);
      if (chosen) return await readChosen(file, chosen.slice(start, end));
      const facts = await this.facts(file);
      if (!facts) throw new MissingFileError(`${file}: there is no such file`);
      const first = Math.floor(start / this.sliceBytes);
      const last = Math.floor(Math.max(start, end - 1) / this.sliceBytes);
      const within = start - first * this.sliceBytes;
      if (first === last) return (await this.slice(file, facts, first)).subarray(within, within + end - start);
      const whole = new Uint8Array(end - start);
      for (let index = first; index <= last; index++) {
        const from = Math.max(start, index * this.sliceBytes);
        const bytes = await this.slice(file, facts, index);
        whole.set(bytes.subarray(from - index * this.sliceBytes, end - index * this.sliceBytes), from - start);
      }
      return whole;
    });
  }

  /** Fetches the remaining slices and verifies digests, so that the next load needs no network. */
  async complete(newDigest: () => Digest): Promise<void> {
    for (const [file, facts] of this.known) {
      if (!facts || facts.verified || this.store instanceof NoStore) continue;
      const digest = facts.sha256 === null ? null : newDigest();
      for (let index = 0; index * this.sliceBytes < facts.size; index++)
        digest?.update(await this.slice(file, facts, index));
      const found = digest?.hex() ?? null;
      if (found !== facts.sha256) {
        await this.store.remove(file);
        throw new IntegrityError(`${file}: SHA-256 mismatch: got ${found}, expected ${facts.sha256}`);
      }
      facts.verified = true;
      await this.store.setFacts(file, facts);
    }
    // Missing files are recorded too, because the next load may be offline.
    for (const [file, facts] of this.known) if (!facts) await this.store.setFacts(file, null);
    this.memory.clear();
  }

  /** Contents of a file that the page has given. */
  private chosen(file: string): Blob | null {
    const known = this.place.files?.[file];
    return known instanceof Blob ? known : null;
  }

  /** Deletes the cached slices of a file that has changed on its server. */
  async forgetAll(): Promise<void> {
    for (const file of this.known.keys()) await this.store.remove(file);
  }

  private async noted<T>(work: () => Promise<T>): Promise<T> {
    try {
      return await work();
    } catch (error) {
      this.error ??= error;
      throw error;
    }
  }

  private async facts(file: string): Promise<Facts | null> {
    let facts = this.known.get(file);
    if (facts !== undefined) return facts;
    facts = await this.store.facts(file);
    if (facts === undefined) {
      facts = await this.probe(file);
      if (facts) await this.store.setFacts(file, facts);
    }
    this.known.set(file, facts);
    return facts;
  }

  /** Requests the list of files from the hub, once and only if it is needed. */
  private async list(): Promise<Listed[]> {
    if (this.listed) return this.listed;
    const listed: Listed[] = [];
    for (let page = this.place.listing; page; ) {
      const response = await this.request(page, {});
      if (!response.ok) throw statusError(this.place.name, response.status);
      for (const { type, path, size, lfs } of await response.json()) {
        if (type !== "directory") listed.push({ path, size, sha256: lfs?.oid ?? null });
      }
      page = nextPage(response);
    }
    await this.store.setListing(listed);
    return (this.listed = listed);
  }

  /** Fetches the first slice, and with it the file's metadata. */
  private async probe(file: string): Promise<Facts | null> {
    if (this.place.files && !(file in this.place.files)) return null;
    const listed = this.place.listing ? (await this.list()).find(({ path }) => path === file) : undefined;
    if (this.place.listing && !listed) return null;
    const response = await this.request(this.address(file), { Range: `bytes=0-${this.sliceBytes - 1}` });
    if (response.status === 404 || response.status === 410) return null;
    if (response.status === 416) return newFacts(0, response, listed);
    if (!response.ok) throw statusError(file, response.status);
    if (response.status === 200) return newFacts(await this.takeStream(file, response), response, listed);
    const size = listed?.size ?? rangeSize(response) ?? (await this.askSize(file));
    const facts = newFacts(size, response, listed);
    await this.checkRoom(file, facts);
    await this.fetchSlice(file, facts, 0, response);
    return facts;
  }

  /** Requests the file's size with HEAD, for responses whose Content-Range cannot be read. */
  private async askSize(file: string): Promise<number> {
    const response = await this.request(this.address(file), {}, "HEAD");
    const length = response.headers.get("content-length");
    if (!response.ok || length === null) throw new NetworkError(`${file}: the server sends no Content-Length`);
    return Number(length);
  }

  private async checkRoom(file: string, { size }: Facts): Promise<void> {
    if (this.store instanceof NoStore || size <= this.sliceBytes) return;
    const { quota = Infinity, usage = 0 } = await navigator.storage.estimate();
    if (size > quota - usage) {
      const words = `${file} needs ${mib(size)} of storage and this site has ${mib(Math.max(0, quota - usage))} left`;
      throw new QuotaError(`${words}; ${QUOTA_ADVICE}`);
    }
  }

  /** Reads from a server that ignores ranges: one stream, divided into slices as it arrives. Returns its size. */
  private async takeStream(file: string, response: Response): Promise<number> {
    if (this.store instanceof NoStore) this.store.keep(file);
    const announced = Number(response.headers.get("content-length") ?? NaN);
    let [index, at, loaded] = [0, 0, 0];
    let slice = new Uint8Array(Math.min(this.sliceBytes, announced || this.sliceBytes));
    const flush = async () => {
      await this.store.setSlice(file, index, slice.subarray(0, at));
      this.remember(file, index, slice.slice(0, at));
      [index, at] = [index + 1, 0];
    };
    try {
      for await (let bytes of chunks(response)) {
        while (bytes.length > 0) {
          if (at === slice.length) {
            const larger = new Uint8Array(this.sliceBytes);
            larger.set(slice);
            slice = larger;
          }
          const part = bytes.subarray(0, slice.length - at);
          slice.set(part, at);
          at += part.length;
          loaded += part.length;
          bytes = bytes.subarray(part.length);
          if (at === this.sliceBytes) await flush();
        }
        this.onProgress({ phase: "download", file, loaded, total: announced || loaded });
      }
    } catch (error) {
      throw this.networkError(file, error);
    }
    if (at > 0 || index === 0) await flush();
    return loaded;
  }

  private async slice(file: string, facts: Facts, index: number): Promise<Uint8Array> {
    const key = `${index}/${file}`;
    const held = this.memory.get(key);
    if (held) return held;
    const bytes = Math.min(this.sliceBytes, facts.size - index * this.sliceBytes);
    const kept = await this.store.slice(file, index);
    if (kept?.size === bytes) {
      const slice = new Uint8Array(await kept.arrayBuffer());
      this.remember(file, index, slice);
      this.report("cache", file, facts, bytes);
      return slice;
    }
    return await this.fetchSlice(file, facts, index);
  }

  /** Fetches a slice and resumes after interruptions; `response` is its first response, if it was already requested. */
  private async fetchSlice(file: string, facts: Facts, index: number, response?: Response): Promise<Uint8Array> {
    const start = index * this.sliceBytes;
    const slice = new Uint8Array(Math.min(this.sliceBytes, facts.size - start));
    let at = 0;
    for (let attempt = 1; at < slice.length; attempt++) {
      try {
        const range = `bytes=${start + at}-${start + slice.length - 1}`;
        response ??= await this.request(this.address(file), { Range: range });
        if (response.status === 200) {
          await this.takeStream(file, response);
          return await this.slice(file, facts, index);
        }
        if (response.status !== 206) throw statusError(file, response.status);
        if (version(response) !== facts.version || (rangeSize(response) ?? facts.size) !== facts.size) {
          throw new ChangedError(`${file} has changed on the server while it was downloaded`);
        }
        for await (const bytes of chunks(response)) {
          slice.set(bytes.subarray(0, slice.length - at), at);
          at = Math.min(slice.length, at + bytes.length);
          this.report("download", file, facts, bytes.length);
        }
        if (at < slice.length) throw new TypeError("the response ended early");
      } catch (error) {
        if (!(error instanceof TypeError) || attempt === TRIES) throw this.networkError(file, error);
        await pause(FIRST_PAUSE_MS * 2 ** attempt, this.signal);
      }
      response = undefined;
    }
    await this.store.setSlice(file, index, slice);
    this.remember(file, index, slice);
    return slice;
  }

  /** Sends a request; retries on network errors and temporary server errors. */
  private async request(url: string, headers: Record<string, string>, method = "GET"): Promise<Response> {
    for (let attempt = 1; ; attempt++) {
      try {
        // The browser's HTTP cache would keep a second copy.
        const response = await fetch(url, { method, headers, signal: this.signal, cache: "no-store" });
        if (response.status < 500 && response.status !== 429) return response;
        if (attempt === TRIES) return response;
      } catch (error) {
        if (attempt === TRIES || this.signal.aborted) throw this.networkError(url, error);
      }
      await pause(FIRST_PAUSE_MS * 2 ** attempt, this.signal);
    }
  }

  private networkError(file: string, error: unknown): unknown {
    this.signal.throwIfAborted();
    // Browsers report a broken connection as a TypeError.
    return error instanceof TypeError ? new NetworkError(`${file}: ${error.message}`) : error;
  }

  private address(file: string): string {
    const { files, base, query } = this.place;
    const known = files?.[file];
    if (typeof known === "string") return known;
    return new URL(file.split("/").map(encodeURIComponent).join("/"), base).href + query;
  }

  private remember(file: string, index: number, slice: Uint8Array): void {
    this.memory.set(`${index}/${file}`, slice);
    if (this.memory.size > SLICES_IN_MEMORY) this.memory.delete(this.memory.keys().next().value!);
  }

  private report(phase: "download" | "cache", file: string, facts: Facts, bytes: number): void {
    const loaded = Math.min(facts.size, (this.fetched.get(file) ?? 0) + bytes);
    this.fetched.set(file, loaded);
    this.onProgress({ phase, file, loaded, total: facts.size });
  }
}

function newFacts(size: number, response: Response, listed: Listed | undefined): Facts {
  return { size, version: version(response), sha256: listed?.sha256 ?? null, verified: false };
}

async function readChosen(file: string, part: Blob): Promise<Uint8Array> {
  try {
    return new Uint8Array(await part.arrayBuffer());
  } catch (error) {
    throw new MissingFileError(`${file}: the file cannot be read any more (${(error as Error).message})`);
  }
}

/** The URL of the next page of a list, if there is one. */
function nextPage(response: Response): string | null {
  return /<([^>]+)>;\s*rel="next"/.exec(response.headers.get("link") ?? "")?.[1] ?? null;
}

async function* chunks(response: Response): AsyncGenerator<Uint8Array> {
  const reader = response.body!.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    yield value;
  }
}

/** The size in `Content-Range: bytes 0-99/1234`, if the header can be read. */
function rangeSize(response: Response): number | null {
  const size = response.headers.get("content-range")?.split("/")[1];
  return size && size !== "*" ? Number(size) : null;
}

function version(response: Response): string | null {
  return response.headers.get("etag") ?? response.headers.get("last-modified");
}

function statusError(file: string, status: number): Error {
  const why = status === 401 || status === 403 ? " (the repository may be private or gated)" : "";
  return new NetworkError(`${file}: the server responded with status ${status}${why}`);
}

function mib(bytes: number): string {
  return `${Math.ceil(bytes / 2 ** 20)} MiB`;
}

function pause(milliseconds: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const stop = () => reject(signal.reason);
    const timer = setTimeout(() => {
      signal.removeEventListener("abort", stop);
      resolve();
    }, milliseconds);
    signal.addEventListener("abort", stop, { once: true });
  });
}
