// Downloads the files of a model slice by slice: by ranges, or as one stream from servers that answer none.

import { NetworkError } from "../errors.js";
import type { ModelPlace } from "../protocol.js";
import type { Facts, Listed } from "../store.js";
import type { Progress } from "../types.js";
import { isPage, strangeContents } from "./contents.js";
import { sliceLength, type Kept } from "./kept.js";
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

/** A file changed on the server during the download. */
export class ChangedError extends Error {}

/** The server sent something else than the file. */
export class StrangeError extends NetworkError {
  constructor(
    file: string,
    readonly contents: string,
  ) {
    super(`${file}: the server answered with ${contents}`);
  }
}

/** A slice that is being received. */
interface Received {
  bytes: Uint8Array;
  /** Bytes received. */
  at: number;
}

/** Fetches the files of one model. */
export class Downloads {
  readonly network: Network;
  private readonly done = new Map<string, number>();

  constructor(
    private readonly place: ModelPlace,
    private readonly kept: Kept,
    signal: AbortSignal,
    private readonly onProgress: (progress: Progress) => void,
  ) {
    this.network = new Network(signal, place.silenceMs);
    this.network.onRetry = (file) => {
      const loaded = this.done.get(file) ?? 0;
      onProgress({ phase: "retry", file, loaded, total: loaded });
    };
  }

  /** Fetches the first slice, and with it the file's metadata; `null` if there is no such file. */
  async probe(file: string, listed: Listed | undefined): Promise<Facts | null> {
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
    await this.kept.setFacts(file, facts);
    return facts;
  }

  private async takeFirst(
    file: string,
    facts: Facts,
    listed: Listed | undefined,
    response: Response,
  ): Promise<void> {
    facts.size = listed?.size ?? contentRange(response)?.size ?? (await this.askSize(file));
    await this.kept.checkRoom(file, facts);
    await this.fetchSlice(file, facts, 0, response);
  }

  /** Whether a file is still this version, or still missing. Asks for one byte, which tells it. */
  async isCurrent(file: string, kept: Facts | null): Promise<boolean> {
    const range = { first: 0, last: 0 };
    const response = await this.network.request(this.address(file), { file, range, orWhole: true });
    void response.body?.cancel();
    if (response.status === 404 || response.status === 410) return kept === null;
    if (!response.ok && response.status !== 416) throw this.statusError(file, response);
    const size = response.status === 200 ? announcedBytes(response) : (contentRange(response)?.size ?? null);
    if (kept && version(response) === kept.version && (size ?? kept.size) === kept.size) return true;
    // The page that a host sends for a missing file, or that of a network that wants a login.
    if (isPage(response) && kept) throw new StrangeError(file, "an HTML page");
    return isPage(response);
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

  /** Reads a file whose server ignores ranges, or sends it compressed: one stream, divided as it arrives. */
  async takeWhole(file: string, facts: Facts, first?: Response): Promise<void> {
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
      await this.kept.setSlice(file, facts, index, whole);
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

  /** Fetches a slice and resumes after interruptions; `response` is its first response, if it was already requested. */
  async fetchSlice(file: string, facts: Facts, index: number, response?: Response): Promise<Uint8Array> {
    const received = { bytes: new Uint8Array(sliceLength(facts, index)), at: 0 };
    if (!response) await this.resume(file, facts, index, received);
    try {
      await this.fetchBytes(file, facts, index, received, response);
    } catch (error) {
      await this.keepPart(file, facts, index, received);
      throw this.network.failure(file, error);
    }
    await this.kept.setSlice(file, facts, index, received.bytes);
    return received.bytes;
  }

  /** Takes over what an earlier load has received of a slice. */
  private async resume(file: string, facts: Facts, index: number, received: Received): Promise<void> {
    const part = await this.kept.part(file, index);
    if (!part || part.length >= received.bytes.length) return;
    received.bytes.set(part);
    received.at = part.length;
    this.report("cache", file, facts, part.length);
  }

  private async keepPart(file: string, facts: Facts, index: number, { bytes, at }: Received): Promise<void> {
    if (at === 0) return;
    await this.kept.setPart(file, facts, index, bytes.subarray(0, at));
  }

  private async fetchBytes(
    file: string,
    facts: Facts,
    index: number,
    received: Received,
    first?: Response,
  ): Promise<void> {
    const start = index * facts.sliceBytes;
    let response = first;
    let failures = 0;
    while (received.at < received.bytes.length) {
      const before = received.at;
      try {
        const range = { first: start + received.at, last: start + received.bytes.length - 1 };
        response ??= await this.network.request(this.address(file), { file, range });
        if (response.status === 200) return await this.takeSliceOf(file, facts, index, received, response);
        await this.takeRange(file, facts, index, received, response);
        // Servers may send less than was asked for.
        if (received.at === before) throw new TypeError("the server sent an empty response");
        failures = 0;
      } catch (error) {
        void response?.body?.cancel().catch(() => {});
        // Attempts before one that has brought bytes do not count.
        failures = received.at > before ? 1 : failures + 1;
        if (!isInterruption(error) || failures === TRIES) throw error;
        await this.network.pause(file, failures);
      }
      response = undefined;
    }
  }

  /** Takes a slice from a server that has answered ranges before, and now sends the whole file. */
  private async takeSliceOf(
    file: string,
    facts: Facts,
    index: number,
    received: Received,
    response: Response,
  ): Promise<void> {
    facts.ranges = false;
    await this.takeWhole(file, facts, response);
    received.bytes.set((await this.kept.slice(file, facts, index))!);
    received.at = received.bytes.length;
  }

  /** Adds the bytes of a response to a slice. */
  private async takeRange(
    file: string,
    facts: Facts,
    index: number,
    received: Received,
    response: Response,
  ): Promise<void> {
    if (response.status !== 206) {
      throw response.status === 416 ? changed(file) : this.statusError(file, response);
    }
    const start = index * facts.sliceBytes;
    const range = { first: start + received.at, last: start + received.bytes.length - 1 };
    let skip = surplus(file, response, range);
    const size = contentRange(response)?.size ?? facts.size;
    if (version(response) !== facts.version || size !== facts.size) throw changed(file);
    const announced = contentRange(response)?.range;
    let left = announced ? announced.last - announced.first + 1 : skip + range.last - range.first + 1;
    for await (let chunk of this.network.chunks(response)) {
      left -= chunk.length;
      if (left < 0) throw new NetworkError(`${file}: the server sent more bytes than were asked for`);
      const skipped = Math.min(skip, chunk.length);
      skip -= skipped;
      chunk = chunk.subarray(skipped, skipped + received.bytes.length - received.at);
      received.bytes.set(chunk, received.at);
      received.at += chunk.length;
      this.report("download", file, facts, chunk.length);
    }
    if (index === 0) checkFirst(file, response, received);
  }

  /** Reports that bytes of a file have been read or received. */
  report(phase: "download" | "cache", file: string, facts: Facts, bytes: number): void {
    const loaded = Math.min(facts.size, (this.done.get(file) ?? 0) + bytes);
    this.done.set(file, loaded);
    this.onProgress({ phase, file, loaded, total: facts.size });
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
}

function changed(file: string): ChangedError {
  return new ChangedError(`${file} has changed on the server while it was downloaded`);
}

function checkContents(file: string, response: Response, bytes: Uint8Array): void {
  const contents = strangeContents(file, response, bytes);
  if (contents !== null) throw new StrangeError(file, contents);
}

/** Fails if a first slice is something else than the file; nothing of it shall be kept then. */
function checkFirst(file: string, response: Response, received: Received): void {
  try {
    checkContents(file, response, received.bytes.subarray(0, received.at));
  } catch (error) {
    received.at = 0;
    throw error;
  }
}
