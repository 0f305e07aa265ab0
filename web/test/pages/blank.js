// What every test of the page can call.

import * as folio from "/index.js";

/** Reads a stream to its end: the text of each choice, and the last usage. */
async function collect(stream) {
  const texts = {};
  let usage = null;
  for await (const chunk of stream) {
    usage = chunk.usage ?? usage;
    for (const { index, delta } of chunk.choices) texts[index] = (texts[index] ?? "") + (delta.content ?? "");
  }
  return { texts, usage };
}

/** What an error is, in a form that leaves the page. */
async function outcome(work) {
  try {
    return { value: await work() };
  } catch (error) {
    return { name: error.name, code: error.code, message: error.message, status: error.status, param: error.param };
  }
}

window.collect = collect;
window.outcome = outcome;
window.folio = folio;
