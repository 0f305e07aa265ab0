// The chat page of `folio serve`. All requests go to the server that the page came from.

import { computed, signal } from "@preact/signals";
import { render } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import { Api, ApiError, type Served } from "./data/api.js";
import { Store } from "./data/store.js";
import { App } from "./parts/app.js";
import { View } from "./parts/view.js";

const WAIT_MS = 1000;
const WATCH_MS = 5000;

/** The page's own folder, which may lie below the server's root. This script lies in its folder `ui`. */
const base = new URL("..", import.meta.url);
const KEY = `folio key ${base.pathname}`;
const key = signal(sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY) ?? "");
/** Ends the wait for a key; set while the page asks for one. */
const asking = signal<((given: boolean) => void) | null>(null);
const models = signal<Served[]>([]);
/** Why the model does not answer, if it does not. */
const trouble = signal<string | null>("Connecting…");

/** The user closed the question for the key. */
const locked = signal(false);
let waiting: Promise<boolean> | null = null;

/** Asks for a key, once for all requests that wait for it; resolves to whether one was given. */
function askForKey(): Promise<boolean> {
  waiting ??= new Promise<boolean>((resolve) => (asking.value = resolve)).finally(() => {
    asking.value = null;
    waiting = null;
  });
  return waiting;
}

async function send(path: string, init: RequestInit = {}): Promise<Response> {
  for (;;) {
    const headers = new Headers(init.headers);
    const used = key.value;
    if (used) headers.set("Authorization", `Bearer ${used}`);
    const response = await fetch(new URL(path, base), { ...init, headers });
    if (response.status !== 401 || locked.value) return response;
    // Another request may have got a key meanwhile.
    if (used === key.value && !(await askForKey())) {
      locked.value = true;
      return response;
    }
  }
}

function setKey(value: string, keep: boolean): void {
  key.value = value;
  sessionStorage.setItem(KEY, value);
  if (keep) localStorage.setItem(KEY, value);
  else localStorage.removeItem(KEY);
}

const api = new Api(send);
const store = new Store(api);
/** The context of the chosen model, while it is loaded. */
const context = computed(() => chosen()?.max_model_len ?? null);
const ready = computed(() => trouble.value === null);
const view = new View(ready, context, "What you write stays between this browser and your own server.");

/** Follows the server's health: often until it is ready, then now and then. */
async function watch(): Promise<void> {
  for (;;) {
    try {
      const health = await fetch(new URL("health", base));
      const body = health.ok ? null : await health.json().catch(() => null);
      trouble.value = health.ok ? null : (body?.error?.message ?? `The server answered ${health.status}.`);
      // Models come and go.
      if (health.ok) await readModels();
    } catch (error) {
      trouble.value = error instanceof ApiError ? error.message : "The server does not answer.";
      models.value = [];
    }
    await new Promise((resolve) => setTimeout(resolve, ready.value ? WATCH_MS : WAIT_MS));
  }
}

async function readModels(): Promise<void> {
  models.value = await api.models();
  const names = models.value.map(({ id }) => id);
  if (!names.includes(store.model.value ?? "")) store.model.value = names[0] ?? null;
}

function chosen(): Served | undefined {
  return models.value.find(({ id }) => id === store.model.value);
}

/** How a model is, if it is not simply loaded. */
function state({ status }: Served): string {
  if (!status || status.value === "loaded") return "";
  return status.failed ? " (failed)" : ` (${status.value})`;
}

function Models() {
  const failure = chosen()?.status?.reason;
  return (
    <div class="models">
      <span class={`dot ${ready.value ? "ready" : ""}`} aria-hidden="true" />
      {models.value.length > 0 && (
        <select
          aria-label="Model"
          value={store.model.value ?? ""}
          onChange={({ currentTarget }) => (store.model.value = currentTarget.value)}
        >
          {models.value.map((model) => (
            <option value={model.id}>{model.id + state(model)}</option>
          ))}
        </select>
      )}
      {locked.value && (
        <button type="button" onClick={() => (locked.value = false)}>
          Enter the API key
        </button>
      )}
      <span class="state" role="status">
        {trouble.value ?? failure ?? "ready"}
      </span>
    </div>
  );
}

function KeyDialog() {
  const dialog = useRef<HTMLDialogElement>(null);
  useLayoutEffect(() => {
    if (asking.value) dialog.current?.showModal();
  }, [asking.value]);
  return (
    <dialog ref={dialog} aria-labelledby="key-title" onClose={() => asking.value?.(false)}>
      <form
        method="dialog"
        onSubmit={({ currentTarget }) => {
          const form = new FormData(currentTarget);
          const given = String(form.get("key")).trim();
          if (!given) return;
          setKey(given, form.has("keep"));
          asking.value?.(true);
        }}
      >
        <h2 id="key-title">This server requires an API key</h2>
        {key.value && <p class="wrong">The server refused the last one.</p>}
        <input name="key" type="password" aria-label="API key" autocomplete="off" spellcheck={false} required />
        <label class="check">
          <input name="keep" type="checkbox" /> Keep it in this browser
        </label>
        <button type="submit" class="primary">
          Use it
        </button>
      </form>
    </dialog>
  );
}

function More() {
  return (
    <section class="more">
      {key.value && (
        <button type="button" onClick={() => setKey("", false)}>
          Forget the API key
        </button>
      )}
      <p class="faint">
        <a href="ui/licences.txt" target="_blank">
          Licences of the libraries in this page
        </a>
      </p>
    </section>
  );
}

render(
  <>
    <App store={store} view={view} models={<Models />} more={<More />} />
    <KeyDialog />
  </>,
  document.getElementById("page")!,
);
void store.start(base.pathname, 1, location.hash.slice(1));
void watch();
