// Starts the worker of a page, or connects to the one that pages share, and tells why it did not start.

import { BrowserError, NetworkError } from "./errors.js";
import type { LoadOptions } from "./types.js";

/** The worker's path from this file, for pages without a bundler whose copy of this package is on another origin. */
const WORKER = "folio-web/worker.js";
/** What the worker's script imports. */
const IMPORTED = "engine.js";
const HERE = import.meta.url;

/** A worker that is being started. */
export interface Started {
  port: Worker | MessagePort;
  /** The worker, if it is this page's own. */
  worker: Worker | null;
  /** What the user should know. */
  notices: string[];
}

/** Starts a worker for this page, or connects to the site's shared worker of this name. */
export function startWorker(
  { worker, shared }: LoadOptions,
  name: string,
  failed: (error: Error) => void,
): Started {
  checkScope();
  if (shared && typeof SharedWorker === "undefined") throw new BrowserError("this browser lacks SharedWorker");
  const watch = new PolicyWatch();
  const script: Script = { address: null, copied: false };
  const made = start(worker, shared ? sharedWorker(`folio ${name}`) : ownWorker, script);
  made.onerror = (event) => {
    const { message } = event as ErrorEvent;
    void (message ? Promise.resolve(notStarted(message)) : reasonOf(script, watch)).then(failed);
  };
  if (made instanceof Worker) return { port: made, worker: made, notices: [] };
  const copied = "the package comes from another origin, so this page shares its engine with no other page";
  return { port: made.port, worker: null, notices: script.copied ? [copied] : [] };
}

/** Fails where no worker can be made. */
function checkScope(): void {
  if (typeof Worker !== "undefined") return;
  const needed = "folio-web needs a browser's Web Workers, which are not here";
  if (["ServiceWorkerGlobalScope", "SharedWorkerGlobalScope"].some((scope) => scope in globalThis)) {
    const pages = "call load() in a page, with shared: true for one engine of all pages";
    throw new BrowserError(`${needed}; ${pages}, or in an extension in an offscreen document`);
  }
  throw new BrowserError(`${needed}; on a server or in Node, run \`folio serve\` and use its HTTP API`);
}

/** Where a worker's script is. */
interface Script {
  /** Its address; `null` if a bundler knows it. */
  address: URL | null;
  /** Whether it was started by a script that only imports it. */
  copied: boolean;
}

/** Makes a worker, from the package's script or from that at `address`. */
type Make<W> = (address?: string | URL) => W;

// Bundlers find the worker's script by the form of these expressions. The name resolves twice: from this file to the
// file beside it, and as an export of this package. Vite's development server needs the latter: it moves this file into
// a folder of its own, where versions before 8 would look for a relative name.
const ownWorker: Make<Worker> = (address) =>
  address
    ? new Worker(address, { type: "module" })
    : new Worker(new URL("folio-web/worker.js", import.meta.url), { type: "module" });

/** Pages share the worker of the same name. */
const sharedWorker =
  (name: string): Make<SharedWorker> =>
  (address) =>
    address
      ? new SharedWorker(address, { type: "module", name })
      : new SharedWorker(new URL("folio-web/worker.js", import.meta.url), /* @vite-ignore */ { type: "module", name });

function start(given: LoadOptions["worker"], make: Make<Worker | SharedWorker>, script: Script): Worker | SharedWorker {
  if (typeof given === "function") return given();
  if (given !== undefined && typeof given !== "string" && !(given instanceof URL)) {
    script.address = absolute(String(given));
    // A TrustedScriptURL is only one as long as it is passed on as it is.
    return make(given as unknown as URL);
  }
  if (given !== undefined) return make(allowed(withPageOrigin(absolute(given), script)));
  try {
    return make();
  } catch (error) {
    const { name, message } = error as Error;
    const refused = name === "SecurityError" || /TrustedScriptURL/.test(message);
    if (!refused || !HERE.startsWith("http")) throw error;
    return make(allowed(withPageOrigin(new URL(WORKER, HERE), script)));
  }
}

function absolute(address: string | URL): URL {
  return new URL(address, globalThis.location?.href);
}

/** A worker's script must have the page's origin; its imports need not. */
function withPageOrigin(address: URL, script: Script): URL {
  script.address = address;
  if (address.origin === globalThis.location?.origin || address.protocol === "blob:") return address;
  script.copied = true;
  const source = new Blob([`import ${JSON.stringify(address.href)};`], { type: "text/javascript" });
  return new URL(URL.createObjectURL(source));
}

interface TrustedTypes {
  createPolicy(name: string, rules: { createScriptURL: (url: string) => string }): {
    createScriptURL(url: string): URL;
  };
}
let policy: ReturnType<TrustedTypes["createPolicy"]> | null = null;

/** The address for pages that take workers of known policies only: this package's is called `folio-web`. */
function allowed(address: URL): URL {
  const { trustedTypes } = globalThis as { trustedTypes?: TrustedTypes };
  if (!trustedTypes) return address;
  try {
    policy ??= trustedTypes.createPolicy("folio-web", { createScriptURL: (url) => url });
  } catch {
    // The page's policy names others. If it requires one, making the worker fails with the browser's words.
    return address;
  }
  return policy.createScriptURL(address.href);
}

/** Remembers whether the page's Content Security Policy has refused something since. */
class PolicyWatch {
  refused: SecurityPolicyViolationEvent | null = null;

  constructor() {
    if (typeof document === "undefined") return;
    document.addEventListener("securitypolicyviolation", (event) => (this.refused ??= event), { once: true });
  }
}

function notStarted(reason: string): BrowserError {
  return new BrowserError(`the worker could not be started: ${reason}`);
}

/** Why a script did not load, of which browsers say nothing. */
async function reasonOf({ address }: Script, watch: PolicyWatch): Promise<Error> {
  if (globalThis.origin === "null") {
    return notStarted("this page has an opaque origin, as a sandboxed iframe has without allow-same-origin");
  }
  // The event of a violation may come after that of the error.
  await new Promise((resolve) => setTimeout(resolve));
  if (watch.refused) {
    const { effectiveDirective, blockedURI } = watch.refused;
    return notStarted(`the page's Content-Security-Policy must allow ${blockedURI} in ${effectiveDirective}`);
  }
  const script = address ?? new URL(WORKER, HERE);
  const fault = (await faultOf(script)) ?? (await faultOf(new URL(IMPORTED, script)));
  const known = address ? "" : " (or where a bundler has put it)";
  return fault ? fault(known) : notStarted(`${script}${known} did not load`);
}

/** What is wrong with a script of the worker; `null` if nothing is to be seen. */
async function faultOf(script: URL): Promise<((known: string) => Error) | null> {
  const told = (reason: string) => (known: string) =>
    new NetworkError(`the worker could not be started: ${script}${known}: ${reason}`);
  let response: Response;
  try {
    response = await fetch(script, { cache: "no-store" });
  } catch (error) {
    return told((error as Error).message);
  }
  void response.body?.cancel();
  if (!response.ok) return told(`the server responded with status ${response.status}`);
  const type = response.headers.get("content-type") ?? "";
  if (/^\s*text\/html\b/i.test(type)) return told("the server answered with an HTML page");
  if (!/javascript|ecmascript/i.test(type) && script.protocol !== "blob:") {
    return told(`its Content-Type is ${JSON.stringify(type)}, not text/javascript`);
  }
  if (!globalThis.crossOriginIsolated || response.headers.has("cross-origin-embedder-policy")) return null;
  const header = "on a cross-origin isolated page this script needs the header Cross-Origin-Embedder-Policy too";
  return () => notStarted(`${script}: ${header}`);
}
