// What the browser's storage (the origin-private file system) keeps of models: a folder for each, with its files in
// slices and their metadata.
//
// Everything is written atomically and with a checksum, which is compared when it is read: after a power loss or on a
// failing disk, files of the right length can hold zeros. What is damaged counts as missing.

import type { CachedModel } from "./types.js";

/** Metadata of a model's file. */
export interface Facts {
  size: number;
  /** Identifies the file's version, as far as the server's headers can be read. */
  version: string | null;
  /** Hexadecimal SHA-256, if the hub lists one. */
  sha256: string | null;
  /** Whether the file was compared with that. */
  verified: boolean;
  /** Whether its server answers requests for ranges. */
  ranges: boolean;
  /** Bytes per slice. */
  sliceBytes: number;
}

/** A file as the hub lists it. */
export interface Listed {
  path: string;
  size: number;
  sha256: string | null;
}

/** What identifies a model to people. */
interface Label {
  name: string;
  address: string;
}

/** Name of the folder of all models. */
const MODELS = "folio";
// No file of a model begins with a slash.
const LISTING = "/listing";
const LABEL = "/model";
/** What follows a file's name: its metadata, a slice, the part of a slice that was received. */
const OWN = /^(json|\d+(\.part)?)$/;
const CHECKSUM_BYTES = 32;
const REMOVE_TRIES = 20;
const REMOVE_PAUSE_MS = 100;

/** The folder of one model. */
export class Store {
  private constructor(
    private folder: FileSystemDirectoryHandle,
    private readonly id: string,
    private readonly label: Label,
  ) {}

  /** `null` if the storage is unavailable, as in some private windows, or cannot be written, as in Safari before 26. */
  static async open(key: string, label: Label): Promise<Store | null> {
    try {
      if (!("createWritable" in FileSystemFileHandle.prototype)) return null;
      const id = await folderName(key);
      const store = new Store(await modelFolder(id), id, label);
      await store.write(LABEL, json(label)).catch(() => {});
      return store;
    } catch {
      return null;
    }
  }

  /** Makes the folder again, after another page has deleted it. */
  async reopen(): Promise<void> {
    this.folder = await modelFolder(this.id);
    await this.write(LABEL, json(this.label));
  }

  async listing(): Promise<Listed[] | undefined> {
    const listing = parsed(await this.read(LISTING));
    return Array.isArray(listing) && listing.every(isListed) ? listing : undefined;
  }

  setListing(listing: Listed[]): Promise<void> {
    return this.write(LISTING, json(listing));
  }

  /** Metadata of a file; `null` if the server has no such file. */
  async facts(file: string): Promise<Facts | null | undefined> {
    const facts = parsed(await this.read(`${file}.json`));
    return facts === null || isFacts(facts) ? facts : undefined;
  }

  setFacts(file: string, facts: Facts | null): Promise<void> {
    return this.write(`${file}.json`, json(facts));
  }

  async slice(file: string, index: number, bytes: number): Promise<Uint8Array | undefined> {
    const slice = await this.read(`${file}.${index}`);
    return slice?.length === bytes ? slice : undefined;
  }

  async setSlice(file: string, index: number, bytes: Uint8Array): Promise<void> {
    await this.write(`${file}.${index}`, bytes);
    await this.folder.removeEntry(encodeURIComponent(`${file}.${index}.part`)).catch(() => {});
  }

  /** The beginning of a slice, from a download that has failed. */
  part(file: string, index: number): Promise<Uint8Array | undefined> {
    return this.read(`${file}.${index}.part`);
  }

  setPart(file: string, index: number, bytes: Uint8Array): Promise<void> {
    return this.write(`${file}.${index}.part`, bytes);
  }

  /** Deletes all that is kept of a file. */
  async remove(file: string): Promise<void> {
    const prefix = `${encodeURIComponent(file)}.`;
    const names: string[] = [];
    try {
      for await (const name of namesIn(this.folder)) {
        if (name.startsWith(prefix) && OWN.test(name.slice(prefix.length))) names.push(name);
      }
    } catch (error) {
      // Another page has deleted the whole folder.
      ignoreMissing(error as Error);
    }
    for (const name of names) await this.folder.removeEntry(name).catch(() => {});
  }

  async removeListing(): Promise<void> {
    await this.folder.removeEntry(encodeURIComponent(LISTING)).catch(() => {});
  }

  private async read(name: string): Promise<Uint8Array | undefined> {
    return await readChecked(this.folder, encodeURIComponent(name));
  }

  private async write(name: string, bytes: Uint8Array): Promise<void> {
    const handle = await this.folder.getFileHandle(encodeURIComponent(name), { create: true });
    const stream = await handle.createWritable();
    try {
      await stream.write(bytes as BufferSource);
      await stream.write(await checksum(bytes));
      await stream.close();
    } catch (error) {
      await stream.abort().catch(() => {});
      throw error;
    }
  }
}

/** The models that the browser keeps, wholly or in part. */
export async function cachedModels(): Promise<CachedModel[]> {
  const models: CachedModel[] = [];
  const all = await allModels();
  if (!all) return models;
  for await (const id of namesIn(all)) {
    const folder = await all.getDirectoryHandle(id).catch(() => null);
    if (!folder) continue;
    const label = parsed(await readChecked(folder, encodeURIComponent(LABEL))) as Partial<Label> | undefined;
    const { name = "unknown", address = "" } = label ?? {};
    models.push({ id, name, address, bytes: await bytesIn(folder) });
  }
  return models;
}

/** Deletes what is kept of the model with this id or key, or of all models. Does nothing where nothing is kept. */
export async function removeModels(model?: { id: string } | { key: string }): Promise<void> {
  const root = await storageRoot();
  if (!root) return;
  if (!model) return await removeFolder(root, MODELS);
  const all = await allModels();
  if (all) await removeFolder(all, "id" in model ? model.id : await folderName(model.key));
}

/** Deletes a folder. A file in it that is being written is waited for. */
async function removeFolder(parent: FileSystemDirectoryHandle, name: string): Promise<void> {
  for (let tries = 1; ; tries++) {
    try {
      return await parent.removeEntry(name, { recursive: true }).catch(ignoreMissing);
    } catch (error) {
      if ((error as Error).name !== "NoModificationAllowedError" || tries === REMOVE_TRIES) throw error;
      await new Promise((resolve) => setTimeout(resolve, REMOVE_PAUSE_MS));
    }
  }
}

function ignoreMissing(error: Error): void {
  if (error.name !== "NotFoundError") throw error;
}

async function storageRoot(): Promise<FileSystemDirectoryHandle | null> {
  try {
    return await navigator.storage.getDirectory();
  } catch {
    return null;
  }
}

async function allModels(): Promise<FileSystemDirectoryHandle | null> {
  return (await (await storageRoot())?.getDirectoryHandle(MODELS).catch(() => null)) ?? null;
}

async function modelFolder(id: string): Promise<FileSystemDirectoryHandle> {
  const root = await navigator.storage.getDirectory();
  const models = await root.getDirectoryHandle(MODELS, { create: true });
  return await models.getDirectoryHandle(id, { create: true });
}

async function folderName(key: string): Promise<string> {
  const digest = await checksum(new TextEncoder().encode(key));
  return [...digest].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

async function bytesIn(folder: FileSystemDirectoryHandle): Promise<number> {
  let bytes = 0;
  for await (const name of namesIn(folder)) {
    const file = await folder.getFileHandle(name).then((handle) => handle.getFile(), () => null);
    bytes += file?.size ?? 0;
  }
  return bytes;
}

// TypeScript's library does not have this method in workers.
function namesIn(folder: FileSystemDirectoryHandle): AsyncIterable<string> {
  return (folder as unknown as { keys(): AsyncIterable<string> }).keys();
}

/** A file's bytes without the checksum behind them; `undefined` if they are damaged or there is no such file. */
async function readChecked(folder: FileSystemDirectoryHandle, name: string): Promise<Uint8Array | undefined> {
  let whole: Uint8Array;
  try {
    whole = new Uint8Array(await (await (await folder.getFileHandle(name)).getFile()).arrayBuffer());
  } catch {
    return undefined;
  }
  if (whole.length < CHECKSUM_BYTES) return undefined;
  const bytes = whole.subarray(0, -CHECKSUM_BYTES);
  const [found, kept] = [await checksum(bytes), whole.subarray(-CHECKSUM_BYTES)];
  return found.every((byte, at) => byte === kept[at]) ? bytes : undefined;
}

/** SHA-256, because browsers compute it natively and on another thread. */
async function checksum(bytes: Uint8Array): Promise<Uint8Array<ArrayBuffer>> {
  return new Uint8Array(await crypto.subtle.digest("SHA-256", bytes as BufferSource));
}

function json(value: unknown): Uint8Array {
  return new TextEncoder().encode(JSON.stringify(value));
}

/** A stored value, which an earlier version of this package may have written in another form. */
function parsed(bytes: Uint8Array | undefined): unknown {
  try {
    return bytes && JSON.parse(new TextDecoder().decode(bytes));
  } catch {
    return undefined;
  }
}

function isFacts(value: unknown): value is Facts {
  const { size, version, sha256, verified, ranges, sliceBytes } = (value ?? {}) as Partial<Facts>;
  const known = isSize(size) && isSize(sliceBytes) && sliceBytes > 0;
  return known && isTextOrNull(version) && isTextOrNull(sha256) && isFlag(verified) && isFlag(ranges);
}

/** Whether a value is a file of the hub's list, as it is stored. */
export function isListed(value: unknown): value is Listed {
  const { path, size, sha256 } = (value ?? {}) as Partial<Listed>;
  return typeof path === "string" && isSize(size) && isTextOrNull(sha256);
}

const isSize = (value: unknown): value is number => Number.isSafeInteger(value) && (value as number) >= 0;
const isTextOrNull = (value: unknown) => value === null || typeof value === "string";
const isFlag = (value: unknown) => typeof value === "boolean";
