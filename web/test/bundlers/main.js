import { answer, ofFile } from "./answer.js";

const file = new URLSearchParams(location.search).get("file");
(file === null ? answer() : ofFile(file)).then((text) => document.body.append(text));
