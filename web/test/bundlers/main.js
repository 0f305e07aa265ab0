import { answer } from "./answer.js";

answer().then((text) => document.body.append(text));
