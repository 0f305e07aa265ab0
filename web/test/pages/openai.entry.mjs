// OpenAI's own client, bundled for the page by the test.

import OpenAI from "openai";

window.OpenAI = OpenAI;
