"""The shapes of folio's bench in plain PyTorch, and in vLLM, with random weights: rows in the form of
`folio bench --json-lines`.

    gpu-peers.py torch|vllm SHAPE BATCHES CONTEXT NEW_TOKENS PROMPTS

`torch` is what a careful person writes in an afternoon: bfloat16, scaled_dot_product_attention over a static cache, and
a CUDA graph for each decode step. Numbers in lists are separated by commas.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

# Hidden size, layers, query heads, key/value heads, head size, MLP size, vocabulary.
SHAPES = {
    "qwen3-0.6b": (1024, 28, 16, 8, 128, 3072, 151_936),
    "llama-3-8b": (4096, 32, 32, 8, 128, 14_336, 128_256),
}


def numbers(name):
    return SHAPES[name] if name in SHAPES else tuple(int(part) for part in name.split("x"))


def report(shape, scenario, batch, context, rates):
    rates = sorted(rates)
    rate = rates[-1] if scenario == "prefill" else rates[len(rates) // 2]
    row = {"scenario": scenario, "shape": shape, "batch": batch, "context": context, "tokens_per_s": round(rate, 1)}
    row["spread"] = round((rates[-1] - rates[0]) / rates[len(rates) // 2], 4)
    print(json.dumps(row), flush=True)


class Torch:
    def __init__(self, name, sequences, tokens):
        import torch

        self.torch = torch
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.hidden, layers, self.heads, self.kv_heads, self.head_dim, mlp, vocab = numbers(name)
        kind = {"dtype": torch.bfloat16, "device": self.device}
        width, kv_width = self.heads * self.head_dim, self.kv_heads * self.head_dim

        def matrix(rows, columns):
            return torch.randn(rows, columns, **kind) * columns**-0.5

        self.embedding = matrix(vocab, self.hidden)
        self.layers = [
            (
                matrix(width + 2 * kv_width, self.hidden),
                matrix(self.hidden, width),
                matrix(2 * mlp, self.hidden),
                matrix(self.hidden, mlp),
            )
            for _ in range(layers)
        ]
        cache = (sequences, self.kv_heads, tokens, self.head_dim)
        self.cache = [(torch.zeros(cache, **kind), torch.zeros(cache, **kind)) for _ in range(layers)]
        angles = torch.arange(tokens, device=self.device)[:, None] * 10_000.0 ** (
            -torch.arange(0, self.head_dim, 2, device=self.device) / self.head_dim
        )
        self.cos, self.sin = angles.cos().bfloat16(), angles.sin().bfloat16()

    def norm(self, x):
        return (x.float() * (x.float().pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt()).bfloat16()

    def rotate(self, x, positions):
        first, second = x.chunk(2, -1)
        cos, sin = self.cos[positions], self.sin[positions]
        return self.torch.cat((first * cos - second * sin, second * cos + first * sin), -1)

    def forward(self, ids, positions, mask):
        """Next tokens of `ids`, [sequences, tokens], at `positions`, [tokens]; `mask` says which positions are seen."""
        functional = self.torch.nn.functional
        sequences, count = ids.shape
        x = self.embedding[ids]
        for (qkv, out, gate_up, down), (keys, values) in zip(self.layers, self.cache):
            y = self.norm(x) @ qkv.T
            heads = (self.heads, self.kv_heads, self.kv_heads)
            q, k, v = (
                part.view(sequences, count, number, self.head_dim).transpose(1, 2)
                for part, number in zip(y.split([n * self.head_dim for n in heads], -1), heads)
            )
            keys[:sequences].index_copy_(2, positions, self.rotate(k, positions))
            values[:sequences].index_copy_(2, positions, v)
            q, repeats = self.rotate(q, positions), self.heads // self.kv_heads
            seen = count if mask is None else mask.shape[-1]
            k, v = keys[:sequences, :, :seen], values[:sequences, :, :seen]
            k, v = (part.repeat_interleave(repeats, 1) for part in (k, v))
            y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
            x = x + y.transpose(1, 2).reshape(sequences, count, -1) @ out.T
            gate, up = (self.norm(x) @ gate_up.T).chunk(2, -1)
            x = x + (functional.silu(gate) * up) @ down.T
        return (self.norm(x[:, -1]) @ self.embedding.T).argmax(-1, keepdim=True)

    def wait(self):
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    def decode_step(self, batch, context, tokens):
        """A function that decodes one token of each sequence, all at the same position."""
        torch = self.torch
        ids = torch.zeros(batch, 1, dtype=torch.long, device=self.device)
        position = torch.tensor([context], device=self.device)
        places = torch.arange(tokens, device=self.device)

        def step():
            mask = (places <= position)[None, None, None, :]
            ids.copy_(self.forward(ids, position, mask))
            position.add_(1).clamp_(max=tokens - 1)

        step()
        if self.device != "cuda":
            return step
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        return graph.replay


def measure_torch(name, batches, context, new_tokens, prompts):
    tokens = max(context + new_tokens, *prompts)
    model = Torch(name, max(batches), tokens)
    with model.torch.inference_mode():
        for batch in batches:
            step = model.decode_step(batch, context, context + new_tokens)
            rates = []
            for _ in range(3):
                model.wait()
                start = time.perf_counter()
                for _ in range(new_tokens):
                    step()
                model.wait()
                rates.append(batch * new_tokens / (time.perf_counter() - start))
            report(name, "decode", batch, context, rates)
        for prompt in prompts:
            ids = model.torch.zeros(1, prompt, dtype=model.torch.long, device=model.device)
            positions = model.torch.arange(prompt, device=model.device)
            rates = []
            for _ in range(4):
                model.wait()
                start = time.perf_counter()
                model.forward(ids, positions, None)
                model.wait()
                rates.append(prompt / (time.perf_counter() - start))
            report(name, "prefill", 1, prompt, rates[1:])


def measure_vllm(name, batches, context, new_tokens, prompts):
    from vllm import LLM, SamplingParams

    hidden, layers, heads, kv_heads, head_dim, mlp, vocab = numbers(name)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": mlp,
        "vocab_size": vocab,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": name == "qwen3-0.6b",
    }
    folder = Path(tempfile.mkdtemp())
    (folder / "config.json").write_text(json.dumps(config))
    model = LLM(
        str(folder),
        load_format="dummy",
        skip_tokenizer_init=True,
        enable_prefix_caching=False,
        max_model_len=max(context + new_tokens, *prompts) + 8,
        max_num_seqs=max(batches),
    )
    seed = iter(range(1 << 30))

    def seconds(batch, prompt, tokens):
        asked = [{"prompt_token_ids": [(31 * at + 7 * next(seed)) % vocab for at in range(prompt)]} for _ in range(batch)]
        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        start = time.perf_counter()
        model.generate(asked, params, use_tqdm=False)
        return time.perf_counter() - start

    for batch in batches:
        rates = []
        for _ in range(3):
            # The prompts take as long in both.
            longer, shorter = seconds(batch, context, new_tokens), seconds(batch, context, 1)
            rates.append(batch * (new_tokens - 1) / (longer - shorter))
        report(name, "decode", batch, context, rates)
    for prompt in prompts:
        report(name, "prefill", 1, prompt, [prompt / seconds(1, prompt, 1) for _ in range(4)][1:])


def main():
    peer, name, batches, context, new_tokens, prompts = sys.argv[1:]
    listed = lambda text: [int(part) for part in text.split(",")]
    measure = {"torch": measure_torch, "vllm": measure_vllm}[peer]
    measure(name, listed(batches), int(context), int(new_tokens), listed(prompts))


main()
