"use strict";

// The chat page: one conversation, streamed from /v1/chat/completions. Text is never inserted as HTML.

const element = (id) => document.getElementById(id);
const [log, form, input, send, stop, state] = ["log", "form", "input", "send", "stop", "state"].map(element);
const [model, system, temperature, length, key] = ["model", "system", "temperature", "length", "key"].map(element);

let messages = [];
let running = null;

key.value = sessionStorage.getItem("folio-key") ?? "";

function headers() {
  const all = { "Content-Type": "application/json" };
  if (key.value) all.Authorization = `Bearer ${key.value}`;
  return all;
}

/** Asks for the key; resolves once one is given. */
function askForKey() {
  const dialog = element("ask");
  element("ask-key").value = "";
  if (!dialog.open) dialog.showModal();
  return new Promise((resolve, reject) => {
    dialog.addEventListener("close", () => {
      const given = element("ask-key").value.trim();
      if (!given) return reject(new Error("An API key is required."));
      key.value = given;
      sessionStorage.setItem("folio-key", given);
      resolve();
    }, { once: true });
  });
}

/** fetch, which asks for a key when the server wants one. */
async function call(path, options = {}) {
  for (;;) {
    const response = await fetch(path, { ...options, headers: headers() });
    if (response.status !== 401) return response;
    await askForKey();
  }
}

/** The server's own words about a refusal. */
async function refusal(response) {
  const body = await response.json().catch(() => null);
  return body?.error?.message ?? `The server answered ${response.status}.`;
}

async function loadModels() {
  for (;;) {
    try {
      const health = await fetch("/health");
      if (health.ok) break;
      state.textContent = await refusal(health);
    } catch {
      state.textContent = "The server does not answer.";
    }
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
  state.textContent = "";
  const response = await call("/v1/models");
  if (!response.ok) throw new Error(await refusal(response));
  const { data } = await response.json();
  model.replaceChildren(...data.map(({ id }) => new Option(id, id)));
}

function show(role, text) {
  element("empty")?.remove();
  const message = document.createElement("div");
  message.className = `message ${role}`;
  message.append(document.createTextNode(text));
  log.append(message);
  log.scrollTop = log.scrollHeight;
  return message;
}

function note(message, text, isWrong = false) {
  const line = document.createElement("span");
  line.className = isWrong ? "note wrong" : "note";
  line.textContent = text;
  message.append(line);
}

/** The events of a stream, as objects, until [DONE]. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("The response ended early.");
    text += value;
    const parts = text.split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      if (!part.startsWith("data: ")) continue;
      const data = part.slice(6);
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      yield event;
    }
  }
}

function requestBody() {
  const instructions = system.value.trim();
  const body = {
    model: model.value || undefined,
    messages: instructions ? [{ role: "system", content: instructions }, ...messages] : messages,
    stream: true,
    stream_options: { include_usage: true, continuous_usage_stats: true },
  };
  if (temperature.value !== "") body.temperature = Number(temperature.value);
  if (length.value !== "") body.max_tokens = Number(length.value);
  return JSON.stringify(body);
}

/** Streams one answer into the page; resolves to its text. */
async function answer(message, signal) {
  const textNode = message.firstChild;
  let text = "";
  let first = null;
  let counted = 0;
  let shown = 0;
  const response = await call("/v1/chat/completions", { method: "POST", body: requestBody(), signal });
  if (!response.ok) throw new Error(await refusal(response));
  try {
    for await (const event of events(response)) {
      const now = performance.now();
      counted = event.usage?.completion_tokens ?? counted;
      // The rate excludes the time to the first token, which is spent on the prompt.
      first ??= { at: now, tokens: counted };
      const seconds = (now - first.at) / 1000;
      if (seconds > 0.05) shown = (counted - first.tokens) / seconds;
      state.textContent = shown ? `${counted} tokens, ${shown.toFixed(1)} tokens/s` : `${counted} tokens`;
      const piece = event.choices[0]?.delta?.content;
      if (!piece) continue;
      const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 150;
      text += piece;
      textNode.data = text;
      if (atEnd) log.scrollTop = log.scrollHeight;
    }
  } catch (error) {
    if (error.name !== "AbortError") throw Object.assign(error, { text });
    note(message, "stopped");
  }
  return text;
}

function setRunning(controller) {
  running = controller;
  send.hidden = Boolean(controller);
  stop.hidden = !controller;
}

async function submit() {
  const text = input.value.trim();
  if (!text || running) return;
  input.value = "";
  resize();
  // If a new chat begins before this answer ends, the answer still belongs to the old one.
  const conversation = messages;
  conversation.push({ role: "user", content: text });
  show("user", text);
  const message = show("assistant", "");
  message.classList.add("running");
  const controller = new AbortController();
  setRunning(controller);
  try {
    const said = await answer(message, controller.signal);
    conversation.push({ role: "assistant", content: said });
  } catch (error) {
    if (controller.signal.aborted) note(message, "stopped");
    else note(message, error.message, true);
    // A question without any answer stays on the page, but is not sent again.
    if (error.text) conversation.push({ role: "assistant", content: error.text });
    else conversation.pop();
  } finally {
    message.classList.remove("running");
    if (running === controller) setRunning(null);
    input.focus();
  }
}

function resize() {
  input.style.height = "auto";
  input.style.height = `${input.scrollHeight + 2}px`;
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});

input.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    submit();
  }
});

input.addEventListener("input", resize);
stop.addEventListener("click", () => running?.abort());
key.addEventListener("change", () => sessionStorage.setItem("folio-key", key.value));

element("options").addEventListener("click", ({ currentTarget }) => {
  const settings = element("settings");
  settings.hidden = !settings.hidden;
  currentTarget.setAttribute("aria-expanded", String(!settings.hidden));
});

element("reset").addEventListener("click", () => {
  running?.abort();
  setRunning(null);
  messages = [];
  state.textContent = "";
  log.replaceChildren();
  input.focus();
});

loadModels().catch((error) => {
  state.textContent = error.message;
});
