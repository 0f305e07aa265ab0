import { FolioError, load } from "folio-web";
import demo from "folio-web-demo";

/** What the demo model says, and the name of an error, which a minifier might change. */
export async function answer() {
  const engine = await load({ model: demo, device: "cpu", limits: { maxNumSeqs: 2, maxModelLen: 128 } });
  const messages = [{ role: "user", content: "Hello!" }];
  const { choices } = await engine.chat.completions.create({ messages, temperature: 0, max_tokens: 32 });
  await engine.unload();
  const error = await engine.stats().catch((error) => error);
  return `${choices[0].message.content} ${error.name} ${error instanceof FolioError}`;
}

/** The greedy tokens of a GGUF file that the page has as a `File`, as from an `<input>`. */
export async function ofFile(url) {
  const model = new File([await (await fetch(url)).blob()], "model.gguf");
  const engine = await load({ model, device: "cpu", limits: { maxNumSeqs: 1, maxModelLen: 128 } });
  const prompt = JSON.parse(new URLSearchParams(location.search).get("prompt"));
  const params = { prompt, temperature: 0, max_tokens: 16, ignore_eos: true, return_token_ids: true };
  const { choices } = await engine.completions.create(params);
  await engine.unload();
  return choices[0].token_ids.join();
}
