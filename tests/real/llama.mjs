// Runs llama.cpp for `.ci/real`, `.ci/beside` and `.ci/converted`: reads a task from stdin, and prints the answer as
// JSON.
//
// `{"model", "threads", "score": [{"text", "prompt", "answer", "tops"}]}`: the tokens of each text, and for each token
// of an answer the logprobs of the most likely tokens and of the ones in `tops`, given the tokens before it.
//
// `{"model", "threads", "speed": {"scenario", "sequences", "context", "new_tokens"}}`: tokens per second, by the same
// rules as `folio bench`: `decode` from the latest first token to the earliest last one, `prefill` as the best time of
// three to the first token.
//
// `{"model", "threads", "gaps": [{"prompt", "answer", "context"}]}`: for each token of an answer, how much more likely
// than it the most likely token in its place is, as a difference of logits, given the tokens before it; with room for
// `context` tokens.

import {readFileSync} from "node:fs";
import {getLlama, LlamaLogLevel} from "node-llama-cpp";

const task = JSON.parse(readFileSync(0, "utf8"));
const llama = await getLlama({gpu: false, build: "never", logLevel: LlamaLogLevel.error, progressLogs: false});
const model = await llama.loadModel({modelPath: task.model});

async function open(tokens, sequences) {
    const options = {contextSize: tokens, sequences, threads: task.threads, batchSize: 512};
    const context = await model.createContext(options);
    return Array.from({length: sequences}, () => context.getSequence());
}

// For each token of an answer, the logits of the most likely token and of the ones in `tops`, and their total weight.
async function logits({prompt, answer, tops}, sequence) {
    const input = [...prompt, ...answer.slice(0, -1)].map((token, at) => {
        const index = at - (prompt.length - 1);
        if (index < 0) return token;
        const logits = {filter: {tokens: tops[index], includeTop: 1}};
        return [token, {generateNext: {logits, totalLogitWeight: true}}];
    });
    const outputs = await sequence.controlledEvaluate(input);
    return outputs.filter((output) => output?.next?.logits).map(({next}) => next);
}

async function score({text, prompt, answer, tops}, sequence) {
    await sequence.clearHistory();
    const steps = (await logits({prompt, answer, tops}, sequence)).map((next) => {
        const most = Math.max(...next.logits.values());
        const total = most + Math.log(next.totalLogitWeight);
        return [...next.logits].map(([token, logit]) => [token, logit - total]);
    });
    return {tokens: [model.tokens.bos, ...model.tokenize(text)], steps};
}

// Tokens that no cache has seen.
let seed = 1;
const randomTokens = (count) => Array.from({length: count}, () => {
    seed = (seed * 48271) % 2147483647;
    return 1000 + (seed % 200000);
});

// Seconds at which each new token arrives.
async function arrivals(sequence, context, newTokens, start) {
    const times = [];
    for await (const _ of sequence.evaluate(randomTokens(context), {temperature: 0, yieldEogToken: true})) {
        times.push((performance.now() - start) / 1000);
        if (times.length >= newTokens) break;
    }
    return times;
}

async function round(sequences, context, newTokens) {
    for (const sequence of sequences) await sequence.clearHistory();
    const start = performance.now();
    return Promise.all(sequences.map((sequence) => arrivals(sequence, context, newTokens, start)));
}

async function speed({scenario, sequences: count, context, new_tokens: newTokens}) {
    const sequences = await open(context + newTokens + 8, count);
    await round(sequences.slice(0, 1), 8, 4);
    if (scenario === "prefill") {
        let best = Infinity;
        for (let run = 0; run < 3; run++) {
            const all = await round(sequences, context, 1);
            best = Math.min(best, Math.max(...all.map((times) => times[0])));
        }
        return {tokens_per_s: count * context / best};
    }
    const all = await round(sequences, context, newTokens);
    const from = Math.max(...all.map((times) => times[0]));
    const to = Math.min(...all.map((times) => times.at(-1)));
    const tokens = all.flat().filter((at) => at > from && at <= to).length;
    return {tokens_per_s: tokens / (to - from)};
}

async function gaps({prompt, answer, context: contextSize}) {
    // Without flash attention and with f32, keys and values are not rounded, which would change choices of experts.
    const types = {flashAttention: false, experimentalKvCacheKeyType: "F32", experimentalKvCacheValueType: "F32"};
    const context = await model.createContext({contextSize, threads: task.threads, batchSize: 512, ...types});
    const steps = await logits({prompt, answer, tops: answer.map((token) => [token])}, context.getSequence());
    await context.dispose();
    return steps.map((step, index) => Math.max(...step.logits.values()) - step.logits.get(answer[index]));
}

let answer;
if (task.gaps) {
    answer = [];
    for (const one of task.gaps) answer.push(await gaps(one));
} else if (task.score) {
    const tokens = Math.max(...task.score.map(({prompt, answer}) => prompt.length + answer.length));
    const [sequence] = await open(tokens + 8, 1);
    answer = [];
    for (const one of task.score) answer.push(await score(one, sequence));
} else {
    answer = await speed(task.speed);
}
process.stdout.write(JSON.stringify(answer), () => process.exit(0));
