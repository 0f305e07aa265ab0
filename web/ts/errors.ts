// All errors of the package, each with a stable `code`. They are sent through the worker's port as plain objects. Names
// are literal, because minifiers rename classes.

/** Base class of all errors of this package. */
export class FolioError extends Error {
  override readonly name: string = "FolioError";
  /** Stable identifier for programs; the message is for people. */
  readonly code: string = "folio_error";
}

/** This is no browser, or it lacks what the engine needs. */
export class BrowserError extends FolioError {
  override readonly name = "BrowserError";
  override readonly code = "browser";
}

/** The browser has no WebGPU, or WebGPU offers no adapter, and the processor was ruled out. */
export class NoAdapterError extends FolioError {
  override readonly name = "NoAdapterError";
  override readonly code = "no_adapter";
}

/** The requested model or limits do not fit the device, or a limit is out of range. */
export class LimitError extends FolioError {
  override readonly name = "LimitError";
  override readonly code = "limit";
}

/** The model's files are invalid, or their format is not supported. */
export class ModelError extends FolioError {
  override readonly name = "ModelError";
  override readonly code = "model";
}

/** A file of the model is missing. */
export class MissingFileError extends FolioError {
  override readonly name = "MissingFileError";
  override readonly code = "missing_file";
}

/** A file could not be fetched, even after retries. */
export class NetworkError extends FolioError {
  override readonly name = "NetworkError";
  override readonly code = "network";
}

/** Hash mismatch: a file does not have the SHA-256 that the hub lists. */
export class IntegrityError extends FolioError {
  override readonly name = "IntegrityError";
  override readonly code = "integrity";
}

/** The device was lost and could not be recovered; `engine.reload()` loads the model again. */
export class DeviceLostError extends FolioError {
  override readonly name = "DeviceLostError";
  override readonly code = "device_lost";
}

/** The device rejected a kernel or a batch. */
export class DeviceError extends FolioError {
  override readonly name = "DeviceError";
  override readonly code = "device";
}

/** The engine crashed; `engine.reload()` loads the model again. */
export class EngineCrashedError extends FolioError {
  override readonly name = "EngineCrashedError";
  override readonly code = "engine_crashed";
}

/** The engine was unloaded. */
export class UnloadedError extends FolioError {
  override readonly name = "UnloadedError";
  override readonly code = "unloaded";
}

/** An error response of the API: it refused the request, or failed on it. */
export class APIError extends FolioError {
  override readonly name = "APIError";
  override readonly code: string;
  constructor(
    message: string,
    readonly status: number,
    readonly type: string,
    code: string,
    readonly param: string | null,
  ) {
    super(message);
    this.code = code;
  }
}

const CLASSES = {
  BrowserError,
  NoAdapterError,
  LimitError,
  ModelError,
  MissingFileError,
  NetworkError,
  IntegrityError,
  DeviceLostError,
  DeviceError,
  EngineCrashedError,
  UnloadedError,
};

/** An error as it is sent through a port. */
export interface WireError {
  name: string;
  message: string;
}

/** The name and message of whatever was thrown. */
export function toWire(error: unknown): WireError {
  if (error instanceof Error || error instanceof DOMException) return { name: error.name, message: error.message };
  return { name: "Error", message: String(error) };
}

/** Rebuilds the error that the other side has thrown. */
export function fromWire({ name, message }: WireError): Error {
  const known = CLASSES[name as keyof typeof CLASSES];
  if (known) return new known(message);
  if (name === "AbortError") return new DOMException(message, "AbortError");
  return new FolioError(message);
}

/** The error for a response with a status other than 2xx, or for an error event in a stream. */
export function fromApi(status: number, body: unknown): Error {
  const error = (body as { error?: { message?: string; type?: string; code?: string; param?: string | null } })?.error;
  const message = error?.message ?? `the engine answered with status ${status}`;
  if (error?.code === "device_lost") return new DeviceLostError(message);
  return new APIError(message, status, error?.type ?? "server_error", error?.code ?? "unknown", error?.param ?? null);
}
