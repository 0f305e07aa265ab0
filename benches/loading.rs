//! Measures loading weights from a warm page cache to a device: `cargo bench --bench loading [ADAPTER]`.
//!
//! Writes a 400 MB bf16 checkpoint to the temporary folder, then loads it unchanged, in q8 and in q4. For comparison,
//! each run also measures uploading the same bytes from memory. Loading unchanged must reach 60 % of that speed, and
//! quantizing to q4 150 MB/s of input per core. ADAPTER is a number from `folio devices`; without it the device is the
//! CPU.

use bytes::Bytes;
use folio::backend::reference::ReferenceBackend;
use folio::backend::wgpu::{WgpuBackend, WgpuOptions};
use folio::backend::{Backend, BackendError, Capacity};
use folio::model::{Model, Quantization};
use folio::plan::{KvFormat, Plan, Storage, WeightId};
use folio::platform::block_on;
use half::bf16;
use safetensors::tensor::{Dtype, TensorView};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use std::{env, fs, thread};

const SHARE_MIN: f64 = 0.6;
const QUANTISING_MIN: f64 = 150e6;
const HIDDEN: usize = 2048;
const MLP: usize = 8192;
const VOCAB: usize = 32768;
const LAYERS: usize = 2;
const QUERY_HEADS: usize = 16;
const KV_HEADS: usize = 8;
const HEAD_DIM: usize = 128;

/// Number of rounds; the best counts.
const ROUNDS: usize = 3;

fn main() {
    let temporary = tempfile::tempdir().expect("there is a temporary folder");
    let folder = temporary.path();
    write_checkpoint(folder);
    let adapter = env::args()
        .skip(1)
        .find_map(|argument| argument.parse().ok());
    let cores = thread::available_parallelism().map_or(1, usize::from) as f64;
    let mut faults = Vec::new();
    for (name, quantization) in [
        ("bf16", None),
        ("q8", Some(Quantization::Q8)),
        ("q4", Some(Quantization::Q4)),
    ] {
        let stored = || Model::open(folder).expect("the checkpoint loads");
        let input = stored().record(Storage::F32).weight_bytes() as f64;
        let open = || match quantization {
            None => stored(),
            Some(quantization) => stored().quantized(quantization).expect("it quantizes"),
        };
        let runs: Vec<Run> = (0..ROUNDS)
            .map(|_| match adapter {
                Some(index) => {
                    let options = WgpuOptions {
                        adapter: Some(index),
                        ..WgpuOptions::default()
                    };
                    let open_device =
                        || block_on(WgpuBackend::open(&options)).expect("the adapter opens");
                    measure(&open(), open_device)
                }
                None => measure(&open(), ReferenceBackend::new),
            })
            .collect();
        let best = |of: fn(&Run) -> f64| runs.iter().map(of).fold(f64::INFINITY, f64::min);
        let (loading, upload) = (best(|run| run.loading), best(|run| run.upload));
        // The CPU keeps what was read: there is no upload to compare with.
        let share = adapter.map(|_| upload / loading);
        let per_core = input / loading / cores;
        let peak = runs.iter().map(|run| run.anonymous_max).max().unwrap_or(0) as f64 / 1e6;
        println!(
            "{name}: {:.0} MB/s of input, {:.0} a core; {peak:.0} MB of own memory{}",
            input / loading / 1e6,
            per_core / 1e6,
            share
                .map(|share| format!("; {:.0} % of the upload speed from memory", 100.0 * share))
                .unwrap_or_default()
        );
        if let (None, Some(share)) = (quantization, share)
            && share < SHARE_MIN
        {
            faults.push(format!(
                "{name}: {share:.2} of the upload speed, below {SHARE_MIN}"
            ));
        }
        if quantization == Some(Quantization::Q4) && per_core < QUANTISING_MIN {
            faults.push(format!(
                "{name}: {per_core:.0} B/s per core, below {QUANTISING_MIN:.0}"
            ));
        }
    }
    assert!(
        cfg!(debug_assertions) || faults.is_empty(),
        "{}",
        faults.join("; ")
    );
}

/// Seconds from page cache to device, seconds from memory to device, and the peak of the process's own memory.
struct Run {
    loading: f64,
    upload: f64,
    anonymous_max: u64,
}

fn measure<B: Backend>(model: &Model, open: impl Fn() -> B) -> Run {
    let plan = Arc::new(model.record(Storage::F32));
    let fresh = || {
        let mut backend = open();
        backend
            .load(plan.clone(), &capacity())
            .expect("the device has room");
        backend
    };
    let mut backend = fresh();
    let (before, mut anonymous_max) = (anonymous_bytes(), 0);
    let start = Instant::now();
    upload(model, &plan, |id, row, rows| {
        anonymous_max = anonymous_max.max(anonymous_bytes().saturating_sub(before));
        backend.write_weight(id, row, rows)
    });
    block_on(backend.settle()).expect("the device takes it");
    let loading = start.elapsed().as_secs_f64();
    drop(backend);
    let mut ready = Vec::new();
    upload(model, &plan, |id, row, rows| {
        ready.push((id, row, Bytes::from(rows.to_vec())));
        Ok(())
    });
    let mut backend = fresh();
    let start = Instant::now();
    for (id, row, rows) in ready {
        backend
            .write_weight(id, row, rows)
            .expect("the device takes it");
    }
    block_on(backend.settle()).expect("the device takes it");
    Run {
        loading,
        upload: start.elapsed().as_secs_f64(),
        anonymous_max,
    }
}

fn upload(
    model: &Model,
    plan: &Plan,
    write: impl FnMut(WeightId, u32, Bytes) -> Result<(), BackendError>,
) {
    if let Err(error) = block_on(model.upload(plan, write)) {
        panic!("loading fails: {error}");
    }
}

/// Resident memory that is not file-backed; 0 if the system does not report it.
fn anonymous_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok());
    1024 * kib.unwrap_or(0)
}

fn capacity() -> Capacity {
    Capacity {
        tokens_max: 1,
        sequences_max: 1,
        samples_max: 1,
        feed_slots: 1,
        state_slots: 0,
        table_entries_max: 1,
        history_max: 1,
        bias_max: 1,
        mask_words_max: 1,
        copies_max: 1,
        block_size: 16,
        kv_format: KvFormat::F16,
        deterministic: false,
    }
}

fn write_checkpoint(folder: &Path) {
    let config = serde_json::json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": HIDDEN,
        "intermediate_size": MLP, "num_hidden_layers": LAYERS, "num_attention_heads": QUERY_HEADS,
        "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "vocab_size": VOCAB, "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5, "rope_theta": 10_000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
    });
    fs::write(folder.join("config.json"), config.to_string()).expect("the config is written");
    let mut shapes = vec![
        ("model.embed_tokens.weight".into(), VOCAB, HIDDEN),
        ("model.norm.weight".into(), 1, HIDDEN),
    ];
    for layer in 0..LAYERS {
        let query = QUERY_HEADS * HEAD_DIM;
        for (name, rows, columns) in [
            ("self_attn.q_proj", query, HIDDEN),
            ("self_attn.k_proj", KV_HEADS * HEAD_DIM, HIDDEN),
            ("self_attn.v_proj", KV_HEADS * HEAD_DIM, HIDDEN),
            ("self_attn.o_proj", HIDDEN, query),
            ("mlp.gate_proj", MLP, HIDDEN),
            ("mlp.up_proj", MLP, HIDDEN),
            ("mlp.down_proj", HIDDEN, MLP),
            ("input_layernorm", 1, HIDDEN),
            ("post_attention_layernorm", 1, HIDDEN),
        ] {
            shapes.push((format!("model.layers.{layer}.{name}.weight"), rows, columns));
        }
    }
    // Random rows: identical rows would profit from caches.
    let mut state = 1_u32;
    let values: Vec<bf16> = (0..VOCAB * HIDDEN)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            bf16::from_f32((state >> 8) as f32 / (1 << 23) as f32 - 1.0)
        })
        .collect();
    let bytes: &[u8] = bytemuck::cast_slice(&values);
    let views = shapes.iter().map(|(name, rows, columns)| {
        let shape = if *rows == 1 {
            vec![*columns]
        } else {
            vec![*rows, *columns]
        };
        let view = TensorView::new(Dtype::BF16, shape, &bytes[..2 * rows * columns])
            .expect("shape and bytes agree");
        (name.clone(), view)
    });
    let file = folder.join("model.safetensors");
    safetensors::serialize_to_file(views, None, &file).expect("the checkpoint is written");
    // Brings the file into the page cache.
    fs::read(file).expect("it can be read");
}
