// The files of a model, as the engine reads them. They are fetched by range requests and kept slice by slice in the
// browser's storage; a file is never whole in memory. Files that the user has chosen are read where they are.
//
// A file is divided into slices, one range request each. An interrupted download is resumed where it stopped. A model
// that was loaded once is read without any request, unless the cache is to be compared with the server.

import { IntegrityError, MissingFileError, ModelError, NetworkError } from "../errors.js";
import type { ModelPlace } from "../protocol.js";
import { isListed, type Facts, type Listed } from "../store.js";
import type { Progress } from "../types.js";
import { Downloads, StrangeError } from "./downloads.js";
import { Kept } from "./kept.js";
import { statusError } from "./network.js";

const GGUF = "GGUF";

/** An incremental digest, implemented by the engine's module. */
export interface Digest {
  update(bytes: Uint8Array): void;
  hex(): string;
}

/** The files of one model. */
export class ModelFiles {
  /** The first error of a read; the engine keeps only its message. */
  error: unknown;
  /** Whether an earlier load has left something that this one uses. */
  cached = false;
  private readonly known = new Map<string, Facts | null>();
  /** What servers have sent in place of files, which therefore count as missing. */
  private readonly strange = new Map<string, StrangeError>();
  private listed: Listed[] | null = null;
  /** Whether the server did not answer when it was asked for newer files. */
  private unreachable = false;

  private constructor(
    private readonly place: ModelPlace,
    private readonly kept: Kept,
    private readonly downloads: Downloads,
  ) {}

  static async open(
    place: ModelPlace,
    signal: AbortSignal,
    onProgress: (progress: Progress) => void,
  ): Promise<ModelFiles> {
    const kept = await Kept.open(place, signal);
    return new ModelFiles(place, kept, new Downloads(place, kept, signal, onProgress));
  }

  /** What the user should know about the cache. */
  get notices(): string[] {
    return this.kept.notices;
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
      if (!facts) await this.kept.setFacts(file, null);
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
      if (facts && !facts.verified && this.kept.isKeeping) await this.completeFile(file, facts, newDigest);
    }
    // Missing files are recorded too, because the next load may be offline.
    for (const [file, facts] of this.known) if (!facts) await this.kept.setFacts(file, null);
    this.kept.forgetMemory();
  }

  /** Deletes what is cached of the files of this load. */
  async forgetAll(): Promise<void> {
    for (const file of this.known.keys()) await this.kept.remove(file);
    await this.kept.removeListing();
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
      await this.kept.remove(file);
      throw new IntegrityError(`${file}: SHA-256 mismatch: got ${found}, expected ${facts.sha256}`);
    }
    facts.verified = true;
    await this.kept.setFacts(file, facts);
  }

  /** The hub's list of files; `undefined` for a model that is not in a repository. */
  private async listing(): Promise<Listed[] | undefined> {
    const { listing, cache, name } = this.place;
    if (!listing) return undefined;
    if (this.listed) return this.listed;
    const kept = await this.kept.listing();
    this.cached ||= kept !== undefined;
    try {
      this.listed = kept && cache !== "revalidate" ? kept : await this.list(listing, name);
    } catch (error) {
      if (!kept || !(error instanceof NetworkError)) throw error;
      this.useCached(error);
      this.listed = kept;
    }
    return this.listed;
  }

  /** Requests the list of files from the hub. */
  private async list(address: string, name: string): Promise<Listed[]> {
    const listed: Listed[] = [];
    try {
      for (let page: string | null = address; page; ) {
        const response: Response = await this.downloads.network.request(page, { file: name });
        if (!response.ok) throw statusError(name, response.status, true);
        listed.push(...listedFiles(await this.text(name, response), page));
        page = nextPage(response);
      }
    } catch (error) {
      if (!(error instanceof NetworkError)) throw error;
      const hint = "it was taken for a repository of the hub; a folder of this site is written";
      throw new NetworkError(`${error.message} (${hint} ./${this.place.address.split("/").slice(-2).join("/")}/)`);
    }
    await this.kept.setListing(listed);
    return listed;
  }

  private async text(file: string, response: Response): Promise<string> {
    try {
      return new TextDecoder().decode(await this.downloads.network.body(response));
    } catch (error) {
      throw this.downloads.network.failure(file, error);
    }
  }

  private async facts(file: string): Promise<Facts | null> {
    let facts = this.known.get(file);
    if (facts !== undefined) return facts;
    facts = await this.kept.alone(file, async () => {
      const kept = await this.kept.facts(file);
      if (kept === undefined) return await this.newFacts(file);
      return await this.current(file, kept);
    });
    this.known.set(file, facts);
    return facts;
  }

  /** The metadata of a file that is not cached; what there is of it belongs to another version. */
  private async newFacts(file: string): Promise<Facts | null> {
    await this.kept.remove(file);
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
    if (this.place.cache !== "revalidate" || this.unreachable) return kept;
    try {
      if (await this.isCurrent(file, kept)) return kept;
    } catch (error) {
      if (!(error instanceof NetworkError)) throw error;
      this.useCached(error);
      return kept;
    }
    return await this.newFacts(file);
  }

  private async isCurrent(file: string, kept: Facts | null): Promise<boolean> {
    if (this.place.listing) {
      const listed = (await this.listing())?.find(({ path }) => path === file);
      if (!listed || !kept) return !listed && !kept;
      if (listed.size === kept.size && listed.sha256 !== null && listed.sha256 === kept.sha256) return true;
    }
    return await this.downloads.isCurrent(file, kept);
  }

  /** The server cannot be asked what is current. */
  private useCached(error: NetworkError): void {
    this.unreachable = true;
    this.notices.push(`the cached files are used, because the server cannot tell of newer ones: ${error.message}`);
  }

  private async probe(file: string): Promise<Facts | null> {
    if (this.place.files && !(file in this.place.files)) return null;
    const listed = (await this.listing())?.find(({ path }) => path === file);
    if (this.place.listing && !listed) return null;
    return await this.downloads.probe(file, listed);
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
    const held = this.kept.remembered(file, index) ?? (await this.keptSlice(file, facts, index));
    if (held) return held;
    // Slices that are fetched alone are waited for alone.
    return await this.kept.alone(facts.ranges ? `${file} ${index}` : file, async () => {
      // Another page may have fetched it meanwhile.
      const kept = await this.keptSlice(file, facts, index);
      if (kept) return kept;
      // What replaces a damaged slice of a verified file is not verified.
      facts.verified = false;
      if (facts.ranges) return await this.downloads.fetchSlice(file, facts, index);
      await this.downloads.takeWhole(file, facts);
      return this.kept.remembered(file, index) ?? (await this.keptSlice(file, facts, index))!;
    });
  }

  private async keptSlice(file: string, facts: Facts, index: number): Promise<Uint8Array | undefined> {
    const slice = await this.kept.slice(file, facts, index);
    if (slice) this.downloads.report("cache", file, facts, slice.length);
    return slice;
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
