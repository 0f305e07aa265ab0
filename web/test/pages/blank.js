// Helpers for every test in the page.

import demo from "/demo/index.js";
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

/** An error in a form that can be sent out of the page. */
async function outcome(work) {
  try {
    return { value: await work() };
  } catch (error) {
    return { name: error.name, code: error.code, message: error.message, status: error.status, param: error.param };
  }
}

window.collect = collect;
window.outcome = outcome;
window.demo = demo;
window.folio = folio;
