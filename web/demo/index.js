// Where the files of folio's demo model are, for `load({ model: demo })`.
//
// Bundlers find the files by the form of these expressions. Each name resolves twice: from this file to the folder
// beside it, and as an export of this package, as Vite's development server needs it. Some bundlers make scripts of
// files that end with .json, so these end otherwise.

export default {
  name: "folio-tiny",
  files: {
    "config.json": new URL("folio-web-demo/config.json.bin", import.meta.url),
    "generation_config.json": new URL("folio-web-demo/generation_config.json.bin", import.meta.url),
    "tokenizer.json": new URL("folio-web-demo/tokenizer.json.bin", import.meta.url),
    "tokenizer_config.json": new URL("folio-web-demo/tokenizer_config.json.bin", import.meta.url),
    "model.safetensors": new URL("folio-web-demo/model.safetensors", import.meta.url),
  },
};
