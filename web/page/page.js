// The demo page: two chats on one engine. It uses only the package's public interface.

import { load } from "./index.js";

const $ = (id) => document.getElementById(id);
const SYSTEM = `You are a helpful assistant who answers in simple English. You are kind, you are brief, and you say what
you know. If somebody greets you, greet them. If somebody asks for a story, tell a short one with a beginning, a middle
and an end. If somebody asks what a word means, explain it in one or two sentences and give an example. If you do not
know an answer, say so.`.replaceAll("\n", " ");
const CHATS = [
  { name: "First chat", first: "Write a bedtime story about a robot." },
  { name: "Second chat", first: "What is a KV cache?" },
];

let engine = null;
let controller = null;
const chats = CHATS.map(makeChat);
$("system").value = SYSTEM;
$("chats").append(...chats.map(({ element }) => element));
setReady(false);

$("load").addEventListener("submit", (event) => {
  event.preventDefault();
  if (controller) controller.abort();
  else void start();
});
$("unload").addEventListener("click", () => void stop());
$("both").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("both-text").value.trim();
  if (!text) return;
  $("both-text").value = "";
  for (const chat of chats) void chat.send(text);
});

// With the service worker the page needs no network after the first visit.
if ("serviceWorker" in navigator && isSecureContext) navigator.serviceWorker.register("sw.js").catch(() => {});

async function start() {
  await stop();
  controller = new AbortController();
  showError(null);
  $("start").textContent = "Cancel";
  $("progress").hidden = false;
  try {
    const model = $("model").value.trim() || "demo";
    engine = await load({ model, signal: controller.signal, onProgress: showProgress });
    const { info } = engine;
    $("adapter").textContent = `${info.adapter} (${info.tier})`;
    $("loaded").textContent = `${model}, ${size(info.weightBytes)}, ${info.maxModelLen} tokens`;
    setReady(true);
    chats[0].input.focus();
    void watch(engine);
  } catch (error) {
    if (error.name !== "AbortError") showError(error);
  } finally {
    controller = null;
    $("start").textContent = "Load";
    $("progress").hidden = true;
  }
}

async function stop() {
  const old = engine;
  engine = null;
  setReady(false);
  for (const chat of chats) chat.stop();
  await old?.unload().catch(() => {});
}

function setReady(ready) {
  document.body.classList.toggle("ready", ready);
  for (const id of ["figures", "both", "unload"]) $(id).hidden = !ready;
  for (const chat of chats ?? []) chat.enable(ready);
}

function showProgress({ phase, file, loaded, total }) {
  const words = { download: `Downloading ${file}`, cache: `Reading ${file}`, device: "Moving weights to the GPU" };
  // After the last byte, kernels are compiled.
  const preparing = phase === "ready" || (phase === "device" && loaded === total);
  $("bar").style.width = `${total ? (100 * loaded) / total : 0}%`;
  $("phase").textContent = preparing ? "Compiling kernels…" : `${words[phase]}: ${size(loaded)} of ${size(total)}`;
}

function showError(error) {
  $("error").hidden = !error;
  $("error").textContent = error ? error.message : "";
}

/** Shows the engine's gauges while it is the current engine. */
async function watch(current) {
  let [tokens, at] = [null, 0];
  while (engine === current) {
    try {
      const stats = await current.stats();
      const now = performance.now();
      const { blocksUsed, blocksTotal, generationTokens } = stats;
      $("kv").textContent = `${blocksUsed} of ${blocksTotal} blocks`;
      $("kv-bar").style.width = `${(100 * blocksUsed) / blocksTotal}%`;
      if (tokens !== null && generationTokens > tokens) {
        $("together").textContent = `${((1000 * (generationTokens - tokens)) / (now - at)).toFixed(1)} tokens/s`;
      }
      [tokens, at] = [generationTokens, now];
    } catch (error) {
      if (engine !== current) return;
      showError(error);
      return void stop();
    }
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}

function makeChat({ name, first }) {
  const element = $("chat").content.firstElementChild.cloneNode(true);
  const part = (selector) => element.querySelector(selector);
  const [log, input, form, stopButton] = [part(".log"), part("input"), part("form"), part(".stop")];
  const sendButton = part("form button[type=submit]");
  const messages = [];
  let running = null;
  part("h2").textContent = name;
  input.value = first;
  input.setAttribute("aria-label", `Message of the ${name.toLowerCase()}`);

  const say = (role, text) => {
    const line = document.createElement("p");
    line.className = role;
    line.textContent = text;
    log.append(line);
    log.scrollTop = log.scrollHeight;
    return line;
  };
  const show = (selector, text) => (part(selector).textContent = text);

  async function send(text) {
    if (!engine || running) return;
    running = new AbortController();
    [sendButton.hidden, stopButton.hidden] = [true, false];
    messages.push({ role: "user", content: text });
    say("user", text);
    const line = say("assistant busy", "");
    const system = $("system").value.trim();
    const all = system ? [{ role: "system", content: system }, ...messages] : messages;
    const began = performance.now();
    let firstAt = 0;
    try {
      const options = { include_usage: true, continuous_usage_stats: true };
      const params = { messages: all, stream: true, stream_options: options, max_tokens: 400 };
      for await (const { choices, usage } of await engine.chat.completions.create(params, { signal: running.signal })) {
        const text = choices[0]?.delta.content;
        if (text && !firstAt) {
          firstAt = performance.now();
          show(".first", `${((firstAt - began) / 1000).toFixed(2)} s`);
        }
        if (text) line.textContent += text;
        if (usage) showUsage(usage, firstAt);
        log.scrollTop = log.scrollHeight;
      }
    } catch (error) {
      if (error.name !== "AbortError") say("assistant failed", error.message);
    } finally {
      line.classList.remove("busy");
      if (line.textContent) messages.push({ role: "assistant", content: line.textContent });
      else line.remove();
      [sendButton.hidden, stopButton.hidden] = [false, true];
      running = null;
    }
  }

  function showUsage({ prompt_tokens, completion_tokens, prompt_tokens_details }, firstAt) {
    const seconds = (performance.now() - firstAt) / 1000;
    if (firstAt && completion_tokens > 1) show(".rate", ((completion_tokens - 1) / seconds).toFixed(1));
    show(".cached", `${prompt_tokens_details?.cached_tokens ?? 0} of ${prompt_tokens}`);
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const text = input.value.trim();
    if (!text || running) return;
    input.value = "";
    void send(text);
  });
  stopButton.addEventListener("click", () => running?.abort());
  part(".clear").addEventListener("click", () => {
    running?.abort();
    messages.length = 0;
    log.replaceChildren();
    for (const selector of [".rate", ".first", ".cached"]) show(selector, "–");
  });

  return {
    element,
    input,
    send,
    stop: () => running?.abort(),
    enable: (ready) => {
      for (const one of [input, sendButton]) one.disabled = !ready;
    },
  };
}

function size(bytes) {
  return bytes < 2 ** 30 ? `${(bytes / 2 ** 20).toFixed(1)} MiB` : `${(bytes / 2 ** 30).toFixed(2)} GiB`;
}
