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
