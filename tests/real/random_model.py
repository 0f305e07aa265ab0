"""A checkpoint with random weights in bf16, for `folio serve`, which has no `--shape`."""

import json
import random
import struct
from array import array
from pathlib import Path

# Hidden size, layers, query heads, key heads, head size, MLP size, vocabulary: 134 M parameters.
SHAPE = (1024, 8, 16, 8, 128, 3072, 8192)


def name():
    """The shape as an argument of `folio bench --shape`."""
    return "x".join(map(str, SHAPE))


def config():
    hidden, layers, heads, kv_heads, head_dim, mlp, vocab = SHAPE
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": mlp,
        "vocab_size": vocab,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "tie_word_embeddings": True,
    }


def shapes():
    hidden, layers, heads, kv_heads, head_dim, mlp, vocab = SHAPE
    found = {"model.embed_tokens.weight": [vocab, hidden], "model.norm.weight": [hidden]}
    for layer in range(layers):
        of_layer = {
            "input_layernorm": [hidden],
            "self_attn.q_proj": [heads * head_dim, hidden],
            "self_attn.k_proj": [kv_heads * head_dim, hidden],
            "self_attn.v_proj": [kv_heads * head_dim, hidden],
            "self_attn.q_norm": [head_dim],
            "self_attn.k_norm": [head_dim],
            "self_attn.o_proj": [hidden, heads * head_dim],
            "post_attention_layernorm": [hidden],
            "mlp.gate_proj": [mlp, hidden],
            "mlp.up_proj": [mlp, hidden],
            "mlp.down_proj": [hidden, mlp],
        }
        found |= {f"model.layers.{layer}.{part}.weight": shape for part, shape in of_layer.items()}
    return found


def tokenizer():
    """Each token is a word with a space before it, so that every one is a piece of text in a stream."""
    vocab = {f"Ġw{token}": token for token in range(SHAPE[-1])}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "unk_token": None, "byte_fallback": False, "vocab": vocab, "merges": []},
    }


def write(folder):
    """Writes the checkpoint, unless it is there. Returns its folder."""
    folder = Path(folder)
    if (folder / "config.json").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    numbers, header, end = random.Random(1), {}, 0
    for tensor, shape in shapes().items():
        start, end = end, end + 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[tensor] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    # Numbers of both signs between 1/128 and 1/16. They repeat, but no cache is as large as a tensor.
    block = array("H", (numbers.getrandbits(1) << 15 | 0x3C00 + numbers.randrange(0x180) for _ in range(1_000_003)))
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for start in range(0, end, 2 * len(block)):
            file.write(block.tobytes()[: end - start])
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))
    # The last file: with it, the checkpoint is complete.
    (folder / "config.json").write_text(json.dumps(config()))
    return folder
