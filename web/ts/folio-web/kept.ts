// What is kept of a model while it is loaded and afterwards: slices in memory and in the browser's storage.

import type { ModelPlace } from "../protocol.js";
import { Store, type Facts, type Listed } from "../store.js";

/** Number of slices kept in memory, because slices hold several tensors and matrices are read in pieces. */
const SLICES_IN_MEMORY = 3;

/** The slices and metadata of one model's files. */
export class Kept {
  /** What the user should know. */
  readonly notices: string[] = [];
  private readonly memory = new Map<string, Uint8Array>();
  /** Slices that cannot be fetched alone and are not in the storage; the browser may put them on disk. */
  private readonly blobs = new Map<string, Blob>();
  /** The slice that was read last. */
  private last = "";
  /** The slice behind it, while it is read and its checksum computed: the browser has other threads for that. */
  private ahead: { key: string; slice: Promise<Uint8Array | undefined> } | null = null;

  private constructor(
    private readonly place: ModelPlace,
    private readonly signal: AbortSignal,
    private readonly store: Store | null,
    /** Whether the storage takes more. */
    private keeping: boolean,
  ) {}

  static async open(place: ModelPlace, signal: AbortSignal): Promise<Kept> {
    const fetches = !place.files || Object.values(place.files).some((file) => typeof file === "string");
    const wanted = place.cache !== "none" && fetches;
    const store = wanted ? await Store.open(place.key, { name: place.name, address: place.address }) : null;
    const kept = new Kept(place, signal, store, store !== null);
    if (wanted && !store) {
      const why = isSecureContext
        ? "this browser keeps no files here (private window, or no OPFS)"
        : "a browser keeps no files for a page that was not loaded over https or from localhost";
      kept.notices.push(`${why}: every load downloads the model`);
    }
    return kept;
  }

  /** Whether files are written to the storage. */
  get isKeeping(): boolean {
    return this.keeping;
  }

  async facts(file: string): Promise<Facts | null | undefined> {
    return await this.store?.facts(file);
  }

  async setFacts(file: string, facts: Facts | null): Promise<void> {
    await this.write(file, (store) => store.setFacts(file, facts));
  }

  async listing(): Promise<Listed[] | undefined> {
    return await this.store?.listing();
  }

  async setListing(listing: Listed[]): Promise<void> {
    await this.write("the list of files", (store) => store.setListing(listing));
  }

  /** A slice in memory, without reading the storage. */
  remembered(file: string, index: number): Uint8Array | undefined {
    return this.memory.get(sliceKey(file, index));
  }

  /** A slice from the storage. */
  async slice(file: string, facts: Facts, index: number): Promise<Uint8Array | undefined> {
    const key = sliceKey(file, index);
    // What was not there when it was read ahead may be there now.
    const ahead = this.ahead?.key === key ? await this.ahead.slice : undefined;
    const slice = ahead ?? (await this.stored(file, facts, index));
    if (!slice) return undefined;
    this.remember(file, index, slice);
    this.readAhead(file, facts, index);
    return slice;
  }

  private async stored(file: string, facts: Facts, index: number): Promise<Uint8Array | undefined> {
    const blob = this.blobs.get(sliceKey(file, index));
    if (blob) return new Uint8Array(await blob.arrayBuffer());
    return await this.store?.slice(file, index, sliceLength(facts, index));
  }

  /** Begins to read the next slice of a file that is read from its beginning to its end. */
  private readAhead(file: string, facts: Facts, index: number): void {
    const follows = this.last === sliceKey(file, index - 1);
    this.last = sliceKey(file, index);
    const next = index + 1;
    this.ahead = null;
    if (!follows || next * facts.sliceBytes >= facts.size) return;
    const slice = this.stored(file, facts, next).catch(() => undefined);
    this.ahead = { key: sliceKey(file, next), slice };
  }

  async setSlice(file: string, facts: Facts, index: number, bytes: Uint8Array): Promise<void> {
    this.ahead = null;
    const written = await this.write(file, (store) => store.setSlice(file, index, bytes), facts.size);
    if (!written && !facts.ranges) this.blobs.set(sliceKey(file, index), new Blob([bytes as BlobPart]));
    this.remember(file, index, bytes);
  }

  /** What an earlier load has received of a slice. */
  async part(file: string, index: number): Promise<Uint8Array | undefined> {
    return await this.store?.part(file, index);
  }

  async setPart(file: string, facts: Facts, index: number, bytes: Uint8Array): Promise<void> {
    await this.write(file, async (store) => {
      await store.setFacts(file, facts);
      await store.setPart(file, index, bytes);
    });
  }

  /** Deletes what is kept of a file. */
  async remove(file: string): Promise<void> {
    this.ahead = null;
    await this.store?.remove(file);
  }

  async removeListing(): Promise<void> {
    await this.store?.removeListing();
  }

  /** Lets go of the slices in memory. */
  forgetMemory(): void {
    this.memory.clear();
    this.ahead = null;
  }

  /** Stops writing to the storage if a file has no room in it. */
  async checkRoom(file: string, { size, sliceBytes }: Facts): Promise<void> {
    if (!this.keeping || size <= sliceBytes) return;
    const { quota = Infinity, usage = 0 } = await navigator.storage.estimate();
    if (size > quota - usage) await this.stopKeeping(file, size);
  }

  /** Does something that two pages shall not do at once for the same file, such as a download. */
  async alone<T>(file: string, work: () => Promise<T>): Promise<T> {
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

  /** Writes to the storage. Where it takes nothing more, the load goes on without. Returns whether it was written. */
  private async write(file: string, work: (store: Store) => Promise<void>, size?: number): Promise<boolean> {
    if (!this.store || !this.keeping) return false;
    try {
      await work(this.store).catch(async (error: Error) => {
        if (error.name !== "NotFoundError") throw error;
        // Another page has deleted the cache.
        await this.store!.reopen();
        await work(this.store!);
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

  private remember(file: string, index: number, slice: Uint8Array): void {
    this.memory.set(sliceKey(file, index), slice);
    if (this.memory.size > SLICES_IN_MEMORY) this.memory.delete(this.memory.keys().next().value!);
  }
}

function sliceKey(file: string, index: number): string {
  return `${index}/${file}`;
}

/** The number of bytes in a slice of a file. */
export function sliceLength({ size, sliceBytes }: Facts, index: number): number {
  return Math.min(sliceBytes, size - index * sliceBytes);
}

/** A number of bytes as people say it. */
function inUnits(bytes: number): string {
  const units = ["bytes", "KiB", "MiB", "GiB"];
  const power = bytes < 1024 ? 0 : Math.min(3, Math.floor(Math.log2(bytes) / 10));
  const value = bytes / 1024 ** power;
  return `${value < 10 && power > 0 ? value.toFixed(1) : Math.round(value)} ${units[power]}`;
}
