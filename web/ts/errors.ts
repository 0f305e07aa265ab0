// Every error that the package raises, with a stable `code`. They cross the worker's port as plain objects.

/** What all errors of this package have in common. */
export class FolioError extends Error {
  /** Stable and meant for programs; the message is meant for people. */
  readonly code: string = "folio_error";
  constructor(message: string) {
    super(message);
    this.name = new.target.name;
  }
}

/** There is no WebGPU here, or it offers no adapter. */
export class NoAdapterError extends FolioError {
  override readonly code = "no_adapter";
}

/** The device cannot hold what was asked for, or a limit is out of range. */
export class LimitError extends FolioError {
  override readonly code = "limit";
}

/** The model's files are wrong, or of a kind that is not supported. */
export class ModelError extends FolioError {
  override readonly code = "model";
}

/** A file of the model is not there. */
export class MissingFileError extends FolioError {
  override readonly code = "missing_file";
}

/** A file could not be fetched, also after trying again. */
export class NetworkError extends FolioError {
  override readonly code = "network";
}

/** A file is not the one its server announced. */
export class IntegrityError extends FolioError {
  override readonly code = "integrity";
}

/** The browser gives this site too little storage for the model. */
export class QuotaError extends FolioError {
  override readonly code = "quota";
}

/** The GPU device was lost and did not come back; `engine.reload()` starts again. */
export class DeviceLostError extends FolioError {
  override readonly code = "device_lost";
}

/** The device refused a kernel or a batch. */
export class DeviceError extends FolioError {
  override readonly code = "device";
}

/** The engine stopped by a fault of its own; `engine.reload()` starts again. */
export class EngineCrashedError extends FolioError {
  override readonly code = "engine_crashed";
}

/** The engine was unloaded. */
export class UnloadedError extends FolioError {
  override readonly code = "unloaded";
}

/** The API refused a request, or failed on it: the body of its answer. */
export class APIError extends FolioError {
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
  NoAdapterError,
  LimitError,
  ModelError,
  MissingFileError,
  NetworkError,
  IntegrityError,
  QuotaError,
  DeviceLostError,
  DeviceError,
  EngineCrashedError,
  UnloadedError,
};

/** An error on its way through a port. */
export interface WireError {
  name: string;
  message: string;
}

/** The name and words of whatever was thrown. */
export function toWire(error: unknown): WireError {
  if (error instanceof Error || error instanceof DOMException) return { name: error.name, message: error.message };
  return { name: "Error", message: String(error) };
}

/** The error that the other side has thrown. */
export function fromWire({ name, message }: WireError): Error {
  const known = CLASSES[name as keyof typeof CLASSES];
  if (known) return new known(message);
  if (name === "AbortError") return new DOMException(message, "AbortError");
  return new FolioError(message);
}

/** The body of an answer that is not 2xx, or of an error within a stream. */
export function fromApi(status: number, body: unknown): Error {
  const error = (body as { error?: { message?: string; type?: string; code?: string; param?: string | null } })?.error;
  const message = error?.message ?? `the engine answered with status ${status}`;
  if (error?.code === "device_lost") return new DeviceLostError(message);
  return new APIError(message, status, error?.type ?? "server_error", error?.code ?? "unknown", error?.param ?? null);
}
