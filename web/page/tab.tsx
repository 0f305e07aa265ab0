// The demo page of the package: the chat page, with the engine in this tab. It uses the package's public interface
// alone.

import { computed, signal } from "@preact/signals";
import { render } from "preact";
import type { Engine, LoadOptions, Progress } from "../ts/index.js";
import { Api } from "./data/api.js";
import { noSettings } from "./data/conversation.js";
import { Store } from "./data/store.js";
import { App } from "./parts/app.js";
import { View } from "./parts/view.js";

/** The packages lie beside this script and are not bundled into it. */
const { load } = (await import(new URL("index.js", import.meta.url).href)) as typeof import("../ts/index.js");
const demo = (await import(new URL("demo/index.js", import.meta.url).href)) as typeof import("../demo/index.js");

const WATCH_MS = 1000;
const SYSTEM = `You are a helpful assistant who answers in simple English. You are kind, you are brief, and you say what
you know. If somebody greets you, greet them. If somebody asks for a story, tell a short one with a beginning, a middle
and an end. If somebody asks what a word means, explain it in one or two sentences and give an example. If you do not
know an answer, say so.`.replaceAll("\n", " ");
const DRAFTS = ["Write a bedtime story about a robot.", "What is a KV cache?"];

const engine = signal<Engine | null>(null);
const loading = signal<AbortController | null>(null);
const progress = signal<Progress | null>(null);
const error = signal<string | null>(null);
const wanted = signal("demo");

const api = new Api((path, init) => {
  if (!engine.value) throw new Error("No model is loaded.");
  return engine.value.fetch(`http://folio/${path}`, init);
});
const store = new Store(api);
const ready = computed(() => engine.value !== null);
const context = computed(() => engine.value?.info.maxModelLen ?? null);
const view = new View(ready, context, "Everything runs in this tab: nothing you write leaves it.");

/** The model that the text field names. */
function named(): LoadOptions["model"] {
  const name = wanted.value.trim() || "demo";
  return name === "demo" ? demo.default : name;
}

async function start(model: LoadOptions["model"]): Promise<void> {
  const controller = new AbortController();
  loading.value = controller;
  error.value = null;
  try {
    const loaded = await load({
      model,
      persist: true,
      signal: controller.signal,
      onProgress: (now) => (progress.value = now),
    });
    store.model.value = (await loaded.models.list()).data[0]?.id ?? null;
    engine.value = loaded;
    void watch(loaded);
  } catch (failure) {
    if ((failure as Error).name !== "AbortError") error.value = (failure as Error).message;
  } finally {
    [loading.value, progress.value] = [null, null];
  }
}

async function unload(): Promise<void> {
  const old = engine.value;
  engine.value = null;
  await old?.unload().catch(() => {});
}

/** Notices when the engine ends by itself. */
async function watch(current: Engine): Promise<void> {
  while (engine.value === current) {
    try {
      await current.stats();
    } catch (failure) {
      if (engine.value !== current) return;
      error.value = (failure as Error).message;
      return void unload();
    }
    await new Promise((resolve) => setTimeout(resolve, WATCH_MS));
  }
}

function size(bytes: number): string {
  return bytes >= 1e9 ? `${(bytes / 1e9).toFixed(2)} GB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

function Models() {
  const { value } = engine;
  return (
    <div class="models">
      <span class={`dot ${value ? "ready" : ""}`} aria-hidden="true" />
      <span class="state" role="status">
        {value ? `${store.model.value} on ${value.info.adapter} (${value.info.tier})` : "no model"}
      </span>
      {value && (
        <button type="button" onClick={() => void unload()}>
          Unload
        </button>
      )}
    </div>
  );
}

function Gate() {
  if (engine.value) return null;
  return (
    <form
      class="gate"
      onSubmit={(event) => {
        event.preventDefault();
        if (loading.value) loading.value.abort();
        else void start(named());
      }}
    >
      <label for="model">Model</label>
      <div class="row">
        <input
          id="model"
          list="models"
          autocomplete="off"
          spellcheck={false}
          aria-describedby="hint"
          value={wanted.value}
          onInput={({ currentTarget }) => (wanted.value = currentTarget.value)}
        />
        <datalist id="models">
          <option value="demo">Built-in demo model, five million parameters</option>
          <option value="Qwen/Qwen3-0.6B">1.5 GB</option>
        </datalist>
        <button type="submit" class="primary">
          {loading.value ? "Cancel" : "Load"}
        </button>
      </div>
      <p id="hint" class="hint">
        <b>demo</b>, a repository of the Hugging Face hub (<code>org/name</code> or <code>org/name-GGUF:Q4_K_M</code>),
        or the URL of a GGUF file or of a folder. Downloads stay in this browser. The demo model is a toy that knows a
        handful of topics and is often wrong.
      </p>
      {!loading.value && (
        <p class="hint">
          <label for="files">A GGUF file of this computer:</label>{" "}
          <input
            id="files"
            type="file"
            accept=".gguf"
            multiple
            onChange={({ currentTarget: { files } }) => files?.length && void start(files)}
          />
        </p>
      )}
      {progress.value && <Bar now={progress.value} />}
      {error.value && (
        <p class="wrong" role="alert">
          {error.value}
        </p>
      )}
    </form>
  );
}

function Bar({ now: { phase, file, loaded, total } }: { now: Progress }) {
  const words = {
    download: `Downloading ${file}`,
    cache: `Reading ${file}`,
    retry: `Interrupted, asking for ${file} again`,
    device: "Moving weights to the device",
  };
  const preparing = phase === "ready" || phase === "kernels";
  const text = preparing ? "Compiling kernels…" : `${words[phase]}: ${size(loaded)} of ${size(total)}`;
  return (
    <>
      <progress max={total || 1} value={loaded} aria-label="Progress" />
      <p class="hint" role="status">
        {text}
      </p>
    </>
  );
}

function More() {
  return (
    <p class="more">
      <a href="licences.txt" target="_blank">
        Licences of the libraries in this page
      </a>
    </p>
  );
}

const parts = { models: <Models />, gate: <Gate />, more: <More /> };
render(<App store={store} view={view} {...parts} />, document.getElementById("page")!);
const isWide = matchMedia("(min-width: 60rem)").matches;
await store.start(location.pathname, isWide ? DRAFTS.length : 1, location.hash.slice(1));
store.panes.value.forEach((id, at) => {
  const session = store.session(id);
  if (session.kept) return;
  session.draft.value = DRAFTS[at]!;
  const { settings } = session.conversation.value;
  if (JSON.stringify(settings) === JSON.stringify(noSettings())) store.configure(session, { system: SYSTEM });
});

// With the service worker the page needs no network after the first visit.
if ("serviceWorker" in navigator && isSecureContext) navigator.serviceWorker.register("sw.js").catch(() => {});
