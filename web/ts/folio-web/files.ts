// The files of a model, as the engine reads them. They are fetched by range requests and kept slice by slice in the
// browser's storage; a file is never whole in memory. Files that the user has chosen are read where they are.
//
// A file is divided into slices, one range request each. An interrupted download is resumed where it stopped. A model
// that was loaded once is read without any request, unless the cache is to be compared with the server.

import { IntegrityError, MissingFileError, ModelError, NetworkError } from "../errors.js";
import type { ModelPlace } from "../protocol.js";
import { isListed, Store, type Facts, type Listed } from "../store.js";
import type { Progress } from "../types.js";
import { isPage, strangeContents } from "./contents.js";
import {
  announcedBytes,
  contentRange,
  isInterruption,
  Network,
  statusError,
  surplus,
  TRIES,
  version,
} from "./network.js";

/** Number of slices kept in memory, because slices hold several tensors and matrices are read in pieces. */
const SLICES_IN_MEMORY = 3;
const GGUF = "GGUF";

/** A file changed on the server during the download. */
export class ChangedError extends Error {}

/** The server sent something else than the file. */
class StrangeError extends NetworkError {
  constructor(
    file: string,
    readonly contents: string,
  ) {
    super(`${file}: the server answered with ${contents}`);
  }
}

/** An incremental digest, implemented by the engine's module. */
export interface Digest {
  update(bytes: Uint8Array): void;
  hex(): string;
}

/** The files of one model. */
export class ModelFiles {
  /** The first error of a read; the engine keeps only its message. */
  error: unknown;
  /** What the user should know about the cache. */
  readonly notices: string[] = [];
  /** Whether an earlier load has left something that this one uses. */
  cached = false;
  private readonly memory = new Map<string, Uint8Array>();
  private readonly known = new Map<string, Facts | null>();
  /** What servers have sent in place of files, which therefore count as missing. */
  private readonly strange = new Map<string, StrangeError>();
  /** Slices that cannot be fetched alone and are not in the storage; the browser may put them on disk. */
  private readonly blobs = new Map<string, Blob>();
  private listed: Listed[] | null = null;
  private readonly fetched = new Map<string, number>();
  private readonly network: Network;

  private constructor(
    private readonly place: ModelPlace,
    private readonly store: Store | null,
    /** Whether the storage takes more. */
    private keeping: boolean,
    private readonly signal: AbortSignal,
    private readonly onProgress: (progress: Progress) => void,
  ) {
    this.network = new Network(signal, place.silenceMs);
    this.network.onRetry = (file) => this.reportRetry(file);
  }

  static async open(
    place: ModelPlace,
    signal: AbortSignal,
    onProgress: (progress: Progress) => void,
  ): Promise<ModelFiles> {
    const fetches = !place.files || Object.values(place.files).some((file) => typeof file === "string");
    const wanted = place.cache !== "none" && fetches;
    const store = wanted ? await Store.open(place.key, { name: place.name, address: place.address }) : null;
    const files = new ModelFiles(place, store, store !== null, signal, onProgress);
    if (wanted && !store) {
      const why = isSecureContext
        ? "this browser keeps no files here (private window, or no OPFS)"
        : "a browser keeps no files for a page that was not loaded over https or from localhost";
      files.notices.push(`${why}: every load downloads the model`);
    }
    return files;
  }

  /** Names of all files; `undefined` if they are not known. Called by the engine. */
  names(): Promise<string[] | undefined> {
    return this.noted(async () => {
      if (this.place.files) return Object.keys(this.place.files);
      return (await this.listing())?.map(({ path }) => path);
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
      return await this.bytes(file, facts, start, end);
    });
  }

  /** Whether there is such a file and it begins as GGUF does. */
  async isGguf(file: string): Promise<boolean> {
    try {
      const facts = await this.facts(file);
      // The next load shall need no network for this.
      if (!facts) await this.keep(file, (store) => store.setFacts(file, null));
      if (!facts || facts.size < GGUF.length) return false;
      return String.fromCharCode(...(await this.bytes(file, facts, 0, GGUF.length))) === GGUF;
    } catch (error) {
      // Storage may forbid an address that is a folder.
      if (error instanceof NetworkError) return false;
      throw error;
    }
  }

  /** Fetches the remaining slices and verifies digests, so that the next load needs no network. */
  async complete(newDigest: () => Digest): Promise<void> {
    for (const [file, facts] of this.known) {
      if (facts && !facts.verified && this.keeping) await this.completeFile(file, facts, newDigest);
    }
    // Missing files are recorded too, because the next load may be offline.
    for (const [file, facts] of this.known) if (!facts) await this.keep(file, (store) => store.setFacts(file, null));
    this.memory.clear();
  }

  /** Deletes what is cached of the files of this load. */
  async forgetAll(): Promise<void> {
    for (const file of this.known.keys()) await this.store?.remove(file);
    await this.store?.removeListing();
  }

  /** A failed load's error. If a file is missing, with the reason: where it was looked for, or what was there. */
  reason(error: unknown): unknown {
    const { name, message } = error as Error;
    if (!message?.includes("there is no such file")) return error;
    const [, cause] = [...this.strange].find(([file]) => message.includes(file)) ?? [];
    if (cause) return cause;
    const { address, listing } = this.place;
    if (name !== "ModelError" || listing || !address) return error;
    return new ModelError(`${message} (at ${address})`);
  }

  /** Contents of a file that the page has given. */
  private chosen(file: string): Blob | null {
    const known = this.place.files?.[file];
    return known instanceof Blob ? known : null;
  }

  private async noted<T>(work: () => Promise<T>): Promise<T> {
    try {
      return await work();
    } catch (error) {
      this.error ??= error;
      throw error;
    }
  }

  private async completeFile(file: string, facts: Facts, newDigest: () => Digest): Promise<void> {
    const digest = facts.sha256 === null ? null : newDigest();
    for (let index = 0; index * facts.sliceBytes < facts.size; index++) {
      digest?.update(await this.slice(file, facts, index));
    }
    const found = digest?.hex() ?? null;
    if (found !== facts.sha256) {
      await this.store?.remove(file);
      throw new IntegrityError(`${file}: SHA-256 mismatch: got ${found}, expected ${facts.sha256}`);
    }
    facts.verified = true;
    await this.keep(file, (store) => store.setFacts(file, facts));
  }

  /** The hub's list of files; `undefined` for a model that is not in a repository. */
  private async listing(): Promise<Listed[] | undefined> {
    const { listing, cache, name } = this.place;
    if (!listing) return undefined;
    if (this.listed) return this.listed;
    const kept = await this.store?.listing();
    this.cached ||= kept !== undefined;
    try {
      this.listed = kept && cache !== "revalidate" ? kept : await this.list(listing, name);
    } catch (error) {
      if (!kept || !(error instanceof NetworkError)) throw error;
      this.notices.push(`the cached list of files is used: ${error.message}`);
      this.listed = kept;
    }
    return this.listed;
  }

  /** Requests the list of files from the hub. */
  private async list(address: string, name: string): Promise<Listed[]> {
    const listed: Listed[] = [];
    try {
      for (let page: string | null = address; page; ) {
        const response: Response = await this.network.request(page, { file: name });
        if (!response.ok) throw statusError(name, response.status, true);
        listed.push(...listedFiles(await this.text(name, response), page));
        page = nextPage(response);
      }
    } catch (error) {
      if (!(error instanceof NetworkError)) throw error;
      const hint = "it was taken for a repository of the hub; a folder of this site is written";
      throw new NetworkError(`${error.message} (${hint} ./${name.replace(/:.*/, "")}/)`);
    }
    await this.keep(name, (store) => store.setListing(listed));
    return listed;
  }

  private async text(file: string, response: Response): Promise<string> {
    try {
      return new TextDecoder().decode(await this.network.body(response));
    } catch (error) {
      throw this.network.failure(file, error);
    }
  }

  private async facts(file: string): Promise<Facts | null> {
    let facts = this.known.get(file);
    if (facts !== undefined) return facts;
    facts = await this.alone(file, async () => {
      const kept = await this.store?.facts(file);
      if (kept === undefined) return await this.newFacts(file);
      return await this.current(file, kept);
    });
    this.known.set(file, facts);
    return facts;
  }

  /** The metadata of a file that is not cached; what there is of it belongs to another version. */
  private async newFacts(file: string): Promise<Facts | null> {
    await this.store?.remove(file);
    try {
      return await this.probe(file);
    } catch (error) {
      if (!(error instanceof StrangeError)) throw error;
      if (error.contents === "a Git LFS pointer") throw error;
      this.strange.set(file, error);
      if (file === "tokenizer.json") this.notices.push(error.message);
      return null;
    }
  }

  /** The metadata of a cached file, compared with the server if this was asked for and the server can be reached. */
  private async current(file: string, kept: Facts | null): Promise<Facts | null> {
    this.cached = true;
    if (this.place.cache !== "revalidate") return kept;
    if (this.place.listing) {
      const listed = (await this.listing())?.find(({ path }) => path === file);
      if (!kept) return listed ? await this.newFacts(file) : null;
      if (listed && listed.size === kept.size && listed.sha256 !== null && listed.sha256 === kept.sha256) return kept;
    }
    try {
      if (kept && (await this.isCurrent(file, kept))) return kept;
      return await this.newFacts(file);
    } catch (error) {
      if (!(error instanceof NetworkError) || !kept) throw error;
      this.notices.push(`the cached file is used: ${error.message}`);
      return kept;
    }
  }

  /** Asks for one byte, which tells the version. */
  private async isCurrent(file: string, kept: Facts): Promise<boolean> {
    const range = { first: 0, last: 0 };
    const response = await this.network.request(this.address(file), { file, range, orWhole: true });
    void response.body?.cancel();
    if (response.status >= 400 && ![404, 410, 416].includes(response.status)) throw this.statusError(file, response);
    const size = response.status === 200 ? announcedBytes(response) : (contentRange(response)?.size ?? null);
    const same = response.ok && version(response) === kept.version && (size ?? kept.size) === kept.size;
    // A network that wants a login answers with its own page.
    if (!same && response.ok && isPage(response)) throw new StrangeError(file, "an HTML page");
    return same;
  }

  /** Fetches the first slice, and with it the file's metadata. */
  private async probe(file: string): Promise<Facts | null> {
    if (this.place.files && !(file in this.place.files)) return null;
    const listed = (await this.listing())?.find(({ path }) => path === file);
    if (this.place.listing && !listed) return null;
    const { rangeBytes: sliceBytes } = this.place;
    const range = { first: 0, last: sliceBytes - 1 };
    const response = await this.network.request(this.address(file), { file, range, orWhole: true });
    if (response.status === 404 || response.status === 410) return null;
    const facts: Facts = {
      size: listed?.size ?? 0,
      version: version(response),
      sha256: listed?.sha256 ?? null,
      verified: false,
      ranges: response.status === 206,
      sliceBytes,
    };
    if (response.status === 200) await this.takeWhole(file, facts, response);
    else if (response.status === 206) await this.takeFirst(file, facts, listed, response);
    // A file of no bytes has no range.
    else if (response.status !== 416) throw this.statusError(file, response);
    await this.keep(file, (store) => store.setFacts(file, facts));
    return facts;
  }

  private async takeFirst(
    file: string,
    facts: Facts,
    listed: Listed | undefined,
    response: Response,
  ): Promise<void> {
    facts.size = listed?.size ?? contentRange(response)?.size ?? (await this.askSize(file));
    await this.checkRoom(file, facts);
    await this.fetchSlice(file, facts, 0, response);
  }

  /**
   * Requests the file's size where Content-Range cannot be read, as from storage on another origin. The length of a
   * GET's answer can, and signed addresses often allow no HEAD.
   */
  private async askSize(file: string): Promise<number> {
    const get = await this.network.request(this.address(file), { file });
    const bytes = get.ok ? announcedBytes(get) : null;
    void get.body?.cancel();
    if (bytes !== null) return bytes;
    const head = await this.network.request(this.address(file), { file, method: "HEAD" });
    const length = head.ok ? announcedBytes(head) : null;
    if (length !== null) return length;
    const tried = `GET: status ${get.status}, HEAD: status ${head.status}`;
    const words = "the file's size is unknown, because the server sends no Content-Length and exposes no Content-Range";
    throw new NetworkError(`${file}: ${words} (${tried})`);
  }

  private async checkRoom(file: string, { size, sliceBytes }: Facts): Promise<void> {
    if (!this.keeping || size <= sliceBytes) return;
    const { quota = Infinity, usage = 0 } = await navigator.storage.estimate();
    if (size > quota - usage) await this.stopKeeping(file, size);
  }

  /** Reads a file whose server ignores ranges, or sends it compressed: one stream, divided as it arrives. */
  private async takeWhole(file: string, facts: Facts, first?: Response): Promise<void> {
    let response = first;
    for (let attempt = 1; ; attempt++) {
      try {
        response ??= await this.network.request(this.address(file), { file });
        if (response.status !== 200) throw this.statusError(file, response);
        if (version(response) !== facts.version) throw changed(file);
        const size = await this.takeStream(file, facts, response);
        if (facts.size > 0 && size !== facts.size) throw changed(file);
        facts.size = size;
        return;
      } catch (error) {
        if (!isInterruption(error) || attempt === TRIES) throw this.network.failure(file, error);
        await this.network.pause(file, attempt);
        response = undefined;
      }
    }
  }

  /** Returns the number of bytes. */
  private async takeStream(file: string, facts: Facts, response: Response): Promise<number> {
    const announced = announcedBytes(response) ?? 0;
    const { sliceBytes } = facts;
    let [index, at, loaded] = [0, 0, 0];
    let slice = new Uint8Array(Math.min(sliceBytes, announced || sliceBytes));
    const flush = async () => {
      const whole = slice.slice(0, at);
      if (index === 0) checkContents(file, response, whole);
      await this.setSlice(file, facts, index, whole);
      [index, at] = [index + 1, 0];
    };
    for await (let bytes of this.network.chunks(response)) {
      while (bytes.length > 0) {
        if (at === slice.length) {
          const larger = new Uint8Array(sliceBytes);
          larger.set(slice);
          slice = larger;
        }
        const part = bytes.subarray(0, slice.length - at);
        slice.set(part, at);
        at += part.length;
        loaded += part.length;
        bytes = bytes.subarray(part.length);
        if (at === sliceBytes) await flush();
      }
      this.onProgress({ phase: "download", file, loaded, total: Math.max(announced, loaded) });
    }
    if (at > 0 || index === 0) await flush();
    return loaded;
  }

  private async bytes(file: string, facts: Facts, start: number, end: number): Promise<Uint8Array> {
    const { sliceBytes } = facts;
    const first = Math.floor(start / sliceBytes);
    const last = Math.floor(Math.max(start, end - 1) / sliceBytes);
    const within = start - first * sliceBytes;
    if (first === last) return (await this.slice(file, facts, first)).subarray(within, within + end - start);
    const whole = new Uint8Array(end - start);
    for (let index = first; index <= last; index++) {
      const from = Math.max(start, index * sliceBytes);
      const bytes = await this.slice(file, facts, index);
      whole.set(bytes.subarray(from - index * sliceBytes, end - index * sliceBytes), from - start);
    }
    return whole;
  }

  private async slice(file: string, facts: Facts, index: number): Promise<Uint8Array> {
    const held = this.memory.get(sliceKey(file, index)) ?? (await this.keptSlice(file, facts, index));
    if (held) return held;
    // Slices that are fetched alone are waited for alone.
    return await this.alone(facts.ranges ? `${file} ${index}` : file, async () => {
      // Another page may have fetched it meanwhile.
      const kept = await this.keptSlice(file, facts, index);
      if (kept) return kept;
      // What replaces a damaged slice of a verified file is not verified.
      facts.verified = false;
      if (facts.ranges) return await this.fetchSlice(file, facts, index);
      await this.takeWhole(file, facts);
      return this.memory.get(sliceKey(file, index)) ?? (await this.keptSlice(file, facts, index))!;
    });
  }

  private async keptSlice(file: string, facts: Facts, index: number): Promise<Uint8Array | undefined> {
    const bytes = sliceLength(facts, index);
    const blob = this.blobs.get(sliceKey(file, index));
    const slice = blob ? new Uint8Array(await blob.arrayBuffer()) : await this.store?.slice(file, index, bytes);
    if (!slice) return undefined;
    this.remember(file, index, slice);
    this.report("cache", file, facts, bytes);
    return slice;
  }

  /** Fetches a slice and resumes after interruptions; `response` is its first response, if it was already requested. */
  private async fetchSlice(file: string, facts: Facts, index: number, response?: Response): Promise<Uint8Array> {
    const slice = new Uint8Array(sliceLength(facts, index));
    const download = { slice, at: 0 };
    if (!response) await this.resume(file, facts, index, download);
    try {
      await this.fetchBytes(file, facts, index, download, response);
    } catch (error) {
      await this.keepPart(file, facts, index, download);
      throw this.network.failure(file, error);
    }
    await this.setSlice(file, facts, index, slice);
    return slice;
  }

  /** Takes over what an earlier load has received of a slice. */
  private async resume(file: string, facts: Facts, index: number, download: Download): Promise<void> {
    const part = await this.store?.part(file, index);
    if (!part || part.length >= download.slice.length) return;
    download.slice.set(part);
    download.at = part.length;
    this.report("cache", file, facts, part.length);
  }

  private async keepPart(file: string, facts: Facts, index: number, { slice, at }: Download): Promise<void> {
    if (at === 0) return;
    await this.keep(file, async (store) => {
      await store.setFacts(file, facts);
      await store.setPart(file, index, slice.subarray(0, at));
    });
  }

  private async fetchBytes(
    file: string,
    facts: Facts,
    index: number,
    download: Download,
    first?: Response,
  ): Promise<void> {
    const start = index * facts.sliceBytes;
    let response = first;
    for (let attempt = 1; download.at < download.slice.length; attempt++) {
      const before = download.at;
      try {
        const range = { first: start + download.at, last: start + download.slice.length - 1 };
        response ??= await this.network.request(this.address(file), { file, range });
        if (response.status === 200) return await this.takeSliceOf(file, facts, index, download, response);
        await this.takeRange(file, facts, index, download, response);
        // Servers may send less than was asked for.
        if (download.at === before) throw new TypeError("the server sent an empty response");
        attempt = 0;
      } catch (error) {
        // An attempt that has brought bytes does not count.
        if (download.at > before) attempt = 1;
        if (!isInterruption(error) || attempt === TRIES) throw error;
        await this.network.pause(file, attempt);
      }
      response = undefined;
    }
  }

  /** Takes a slice from a server that has answered ranges before, and now sends the whole file. */
  private async takeSliceOf(
    file: string,
    facts: Facts,
    index: number,
    download: Download,
    response: Response,
  ): Promise<void> {
    facts.ranges = false;
    await this.takeWhole(file, facts, response);
    download.slice.set((await this.keptSlice(file, facts, index))!);
    download.at = download.slice.length;
  }

  /** Adds the bytes of a response to a slice. */
  private async takeRange(
    file: string,
    facts: Facts,
    index: number,
    download: Download,
    response: Response,
  ): Promise<void> {
    if (response.status !== 206) {
      void response.body?.cancel();
      throw response.status === 416 ? changed(file) : this.statusError(file, response);
    }
    const { slice } = download;
    const start = index * facts.sliceBytes;
    const range = { first: start + download.at, last: start + slice.length - 1 };
    let skip = surplus(file, response, range);
    const size = contentRange(response)?.size ?? facts.size;
    if (version(response) !== facts.version || size !== facts.size) throw changed(file);
    const announced = contentRange(response)?.range;
    let left = announced ? announced.last - announced.first + 1 : skip + range.last - range.first + 1;
    for await (let bytes of this.network.chunks(response)) {
      left -= bytes.length;
      if (left < 0) throw new NetworkError(`${file}: the server sent more bytes than were asked for`);
      const skipped = Math.min(skip, bytes.length);
      skip -= skipped;
      bytes = bytes.subarray(skipped, skipped + slice.length - download.at);
      slice.set(bytes, download.at);
      download.at += bytes.length;
      this.report("download", file, facts, bytes.length);
    }
    if (index === 0) checkFirst(file, response, download);
  }

  private async setSlice(file: string, facts: Facts, index: number, bytes: Uint8Array): Promise<void> {
    const kept = await this.keep(file, (store) => store.setSlice(file, index, bytes), facts.size);
    if (!kept && !facts.ranges) this.blobs.set(sliceKey(file, index), new Blob([bytes as BlobPart]));
    this.remember(file, index, bytes);
  }

  /** Writes to the storage. Where it takes nothing more, the load goes on without. Returns whether it was written. */
  private async keep(file: string, write: (store: Store) => Promise<void>, size?: number): Promise<boolean> {
    if (!this.store || !this.keeping) return false;
    try {
      await write(this.store).catch(async (error: Error) => {
        if (error.name !== "NotFoundError") throw error;
        // Another page has deleted the cache.
        await this.store!.reopen();
        await write(this.store!);
      });
      return true;
    } catch (error) {
      await this.stopKeeping(file, size, error as Error);
      return false;
    }
  }

  private async stopKeeping(file: string, size?: number, error?: Error): Promise<void> {
    this.keeping = false;
    const { quota = 0, usage = 0 } = await navigator.storage.estimate();
    const what = size === undefined ? file : `${file} (${inUnits(size)})`;
    const why =
      error && error.name !== "QuotaExceededError"
        ? `cannot be written to this site's storage (${error.message})`
        : `does not fit in this site's storage, where ${inUnits(usage)} of ${inUnits(quota)} are in use`;
    const advice = "the next load downloads it again; cachedModels() lists what clearCache(model) can delete";
    this.notices.push(`${what} ${why}: ${advice}`);
  }

  /** Does something that two pages shall not do at once for the same file, such as a download. */
  private async alone<T>(file: string, work: () => Promise<T>): Promise<T> {
    if (!this.keeping || !navigator.locks) return await work();
    const waiting = new AbortController();
    const stop = () => waiting.abort();
    // A page that holds the lock may be frozen.
    const timer = setTimeout(stop, this.place.silenceMs);
    this.signal.addEventListener("abort", stop, { once: true });
    let begun = false;
    try {
      return await navigator.locks.request(`folio ${this.place.key} ${file}`, { signal: waiting.signal }, () => {
        begun = true;
        clearTimeout(timer);
        return work();
      });
    } catch (error) {
      if (begun || !waiting.signal.aborted) throw error;
      this.signal.throwIfAborted();
      return await work();
    } finally {
      clearTimeout(timer);
      this.signal.removeEventListener("abort", stop);
    }
  }

  private address(file: string): string {
    const { files, base, query } = this.place;
    const known = files?.[file];
    if (typeof known === "string") return known;
    return new URL(file.split("/").map(encodeURIComponent).join("/"), base!).href + query;
  }

  private statusError(file: string, response: Response): NetworkError {
    return statusError(file, response.status, this.place.listing !== null);
  }

  private remember(file: string, index: number, slice: Uint8Array): void {
    this.memory.set(sliceKey(file, index), slice);
    if (this.memory.size > SLICES_IN_MEMORY) this.memory.delete(this.memory.keys().next().value!);
  }

  private report(phase: "download" | "cache", file: string, facts: Facts, bytes: number): void {
    const loaded = Math.min(facts.size, (this.fetched.get(file) ?? 0) + bytes);
    this.fetched.set(file, loaded);
    this.onProgress({ phase, file, loaded, total: facts.size });
  }

  private reportRetry(file: string): void {
    const loaded = this.fetched.get(file) ?? 0;
    this.onProgress({ phase: "retry", file, loaded, total: this.known.get(file)?.size ?? loaded });
  }
}

/** A slice that is being received. */
interface Download {
  slice: Uint8Array;
  /** Bytes received. */
  at: number;
}

function sliceKey(file: string, index: number): string {
  return `${index}/${file}`;
}

function sliceLength({ size, sliceBytes }: Facts, index: number): number {
  return Math.min(sliceBytes, size - index * sliceBytes);
}

function changed(file: string): ChangedError {
  return new ChangedError(`${file} has changed on the server while it was downloaded`);
}

function checkContents(file: string, response: Response, bytes: Uint8Array): void {
  const contents = strangeContents(file, response, bytes);
  if (contents !== null) throw new StrangeError(file, contents);
}

/** Fails if a first slice is something else than the file; nothing of it shall be kept then. */
function checkFirst(file: string, response: Response, download: Download): void {
  try {
    checkContents(file, response, download.slice.subarray(0, download.at));
  } catch (error) {
    download.at = 0;
    throw error;
  }
}

async function readChosen(file: string, part: Blob): Promise<Uint8Array> {
  try {
    return new Uint8Array(await part.arrayBuffer());
  } catch (error) {
    throw new MissingFileError(`${file}: the file cannot be read any more (${(error as Error).message})`);
  }
}

/** The files in a page of the hub's list. */
function listedFiles(text: string, address: string): Listed[] {
  try {
    const entries = JSON.parse(text) as { type: string; path: string; size: number; lfs?: { oid?: string } }[];
    const files = entries.filter(({ type }) => type !== "directory");
    const listed = files.map(({ path, size, lfs }) => ({ path, size, sha256: lfs?.oid ?? null }));
    if (listed.every(isListed)) return listed;
  } catch {
    // Something else, such as the page of a network that wants a login.
  }
  throw new NetworkError(`${address}: what the server sent is not a list of files`);
}

/** The URL of the next page of a list, if there is one. */
function nextPage(response: Response): string | null {
  const url = /<([^>]+)>;\s*rel="next"/.exec(response.headers.get("link") ?? "")?.[1];
  return url ? new URL(url, response.url).href : null;
}

/** A number of bytes as people say it. */
function inUnits(bytes: number): string {
  const units = ["bytes", "KiB", "MiB", "GiB"];
  const power = bytes < 1024 ? 0 : Math.min(3, Math.floor(Math.log2(bytes) / 10));
  const value = bytes / 1024 ** power;
  return `${value < 10 && power > 0 ? value.toFixed(1) : Math.round(value)} ${units[power]}`;
}
