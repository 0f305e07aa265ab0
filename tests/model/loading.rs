//! Opening models: both styles of config, one file or shards, every stored type. Any invalid folder gives a one-line
//! error, never a panic.

mod defaults;
mod experts;
mod faults;
mod files;

use super::golden;
use folio::model::rope::RopeScaling;
use folio::model::{LoadError, Model, ModelSpec, UploadError};
use folio::plan::inputs::DrawParams;
use folio::plan::{Storage, WeightFormat, Window};
use folio::platform::block_on;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs;
use std::path::PathBuf;
use tempfile::TempDir;

/// A copy of a golden model that a test may damage.
struct Folder(TempDir);

impl Folder {
    fn copy(name: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for file in ["config.json", "generation_config.json", "model.safetensors"] {
            fs::copy(golden(name).join(file), folder.path().join(file))
                .expect("a golden file copies");
        }
        Self(folder)
    }

    fn path(&self, file: &str) -> PathBuf {
        self.0.path().join(file)
    }

    fn read(&self, file: &str) -> Vec<u8> {
        fs::read(self.path(file)).expect("the file reads")
    }

    fn write(&self, file: &str, bytes: impl AsRef<[u8]>) {
        fs::write(self.path(file), bytes).expect("the file writes");
    }

    fn open(&self) -> Result<Model, LoadError> {
        Model::open(self.0.path())
    }

    /// The error of opening it, with the folder's name taken out.
    fn error(&self) -> String {
        let error = self
            .open()
            .err()
            .map_or_else(|| "it opened".into(), |error| error.to_string());
        error.replace(&format!("{}/", self.0.path().display()), "")
    }

    /// Sets fields of a JSON file; `null` removes a field.
    fn edit(&self, file: &str, changes: &Value) {
        let mut json: Value =
            serde_json::from_slice(&self.read(file)).expect("the golden file is JSON");
        merge(&mut json, changes);
        self.write(file, json.to_string());
    }

    /// Header and data of `model.safetensors`.
    fn tensors(&self) -> (Map<String, Value>, Vec<u8>) {
        let bytes = self.read("model.safetensors");
        let header = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
        let json: Value =
            serde_json::from_slice(&bytes[8..8 + header]).expect("the header is JSON");
        (
            json.as_object().expect("an object").clone(),
            bytes[8 + header..].to_vec(),
        )
    }

    fn write_tensors(&self, file: &str, header: &Map<String, Value>, data: &[u8]) {
        self.write(
            file,
            safetensors_bytes(&Value::Object(header.clone()).to_string(), data),
        );
    }

    /// Changes the header entry of one tensor.
    fn edit_tensor(&self, tensor: &str, changes: &Value) {
        let (mut header, data) = self.tensors();
        merge(&mut header[tensor], changes);
        self.write_tensors("model.safetensors", &header, &data);
    }

    /// Splits the checkpoint into two files with an index.
    fn shard(&self) {
        let (header, data) = self.tensors();
        let mut shards = [(Map::new(), Vec::new()), (Map::new(), Vec::new())];
        let mut weight_map = Map::new();
        for (number, (name, info)) in header
            .iter()
            .filter(|(name, _)| *name != "__metadata__")
            .enumerate()
        {
            let shard = number % 2;
            let offset =
                |index: usize| info["data_offsets"][index].as_u64().expect("an offset") as usize;
            let (shard_header, shard_data) = &mut shards[shard];
            let start = shard_data.len();
            shard_data.extend_from_slice(&data[offset(0)..offset(1)]);
            let mut info = info.clone();
            info["data_offsets"] = json!([start, shard_data.len()]);
            shard_header.insert(name.clone(), info);
            weight_map.insert(name.clone(), json!(shard_file(shard)));
        }
        for (shard, (header, data)) in shards.iter().enumerate() {
            self.write_tensors(shard_file(shard), header, data);
        }
        self.write(
            "model.safetensors.index.json",
            json!({"weight_map": weight_map}).to_string(),
        );
        fs::remove_file(self.path("model.safetensors")).expect("the single file goes");
    }
}

fn shard_file(shard: usize) -> &'static str {
    [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ][shard]
}

fn safetensors_bytes(header: &str, data: &[u8]) -> Vec<u8> {
    [
        &(header.len() as u64).to_le_bytes(),
        header.as_bytes(),
        data,
    ]
    .concat()
}

fn merge(json: &mut Value, changes: &Value) {
    for (name, value) in changes.as_object().expect("changes are an object") {
        match (&mut json[name], value) {
            (old, Value::Object(_)) if old.is_object() => merge(old, value),
            (old, new) => *old = new.clone(),
        }
    }
}

/// All weights of a model as f32, by their name in the plan. Fails unless each row is written exactly once.
fn upload(model: &Model) -> BTreeMap<String, Vec<f32>> {
    let plan = model.record(Storage::F32);
    let mut rows: Vec<BTreeMap<u32, Vec<f32>>> = vec![BTreeMap::new(); plan.weights.len()];
    let uploaded = block_on(model.upload(
        &plan,
        |id, first_row, bytes| -> Result<(), Infallible> {
            let spec = plan.weight_spec(id);
            let (columns, format) = (spec.columns as usize, spec.format_of(first_row));
            assert!(
                spec.whole_rows(first_row, bytes.len() as u64).is_some(),
                "{} comes in whole rows",
                spec.name
            );
            for (index, row) in bytes.chunks(spec.row_bytes(first_row) as usize).enumerate() {
                let values = (0..columns)
                    .map(|column| format.decode(row, columns, column))
                    .collect();
                let again = rows[id.0 as usize].insert(first_row + index as u32, values);
                assert!(again.is_none(), "each row of {} is written once", spec.name);
            }
            Ok(())
        },
    ));
    uploaded.expect("the model uploads");
    let named = plan.weights.iter().zip(rows).map(|(spec, rows)| {
        assert!(
            rows.keys().copied().eq(0..spec.rows),
            "all rows of {} are written",
            spec.name
        );
        (spec.name.clone(), rows.into_values().flatten().collect())
    });
    named.collect()
}

#[test]
fn old_and_new_configs_give_the_same_model() {
    let plain = ["llama", "llama3-rope", "mistral-window", "qwen2", "qwen3"];
    for name in plain.into_iter().chain([
        "gemma2",
        "phi3",
        "smollm3",
        "olmo2",
        "granite",
        "qwen3-moe",
        "gpt-oss",
    ]) {
        let folder = Folder::copy(name);
        let config: Value = serde_json::from_slice(&folder.read("config.json")).expect("JSON");
        let new = folder.open().expect("the new style opens");
        let mut rope = config["rope_parameters"].clone();
        let theta = rope["rope_theta"].take();
        let scaling = if rope["rope_type"] == "default" {
            Value::Null
        } else {
            rope
        };
        let old = json!({"rope_parameters": null, "dtype": null, "layer_types": null, "torch_dtype": "bfloat16",
            "rope_theta": theta, "rope_scaling": scaling});
        folder.edit("config.json", &old);
        let old = folder.open().expect("the old style opens");
        assert_eq!(old.spec(), new.spec(), "{name}");
    }
}

#[test]
fn two_rope_bases_are_read_in_both_styles() {
    let folder = Folder::copy("gemma3");
    let new = folder.open().expect("the new style opens");
    assert_eq!(
        new.spec()
            .ropes
            .iter()
            .map(|rope| rope.theta)
            .collect::<Vec<_>>(),
        [1e6, 1e4]
    );
    let ropes: Vec<_> = new.spec().layers.iter().map(|layer| layer.rope).collect();
    assert_eq!(
        ropes,
        [Some(1), Some(1), Some(1), Some(1), Some(1), Some(0)],
        "the last layer sees everything"
    );
    folder.edit(
        "config.json",
        &json!({"rope_parameters": null, "layer_types": null, "rope_theta": 1e6,
        "rope_local_base_freq": 1e4, "sliding_window_pattern": 6}),
    );
    assert_eq!(
        folder.open().expect("the old style opens").spec(),
        new.spec()
    );
    folder.edit(
        "config.json",
        &json!({"rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
    );
    let scaled = folder.open().expect("it opens");
    let global = RopeScaling::Linear { factor: 8.0 };
    assert_eq!(
        scaled
            .spec()
            .ropes
            .iter()
            .map(|rope| rope.scaling)
            .collect::<Vec<_>>(),
        [global, RopeScaling::None]
    );
}

/// If a Gemma config has no cap, the architecture's default applies; `null` disables the cap.
#[test]
fn caps_are_the_architectures_own_unless_the_config_says_otherwise() {
    let folder = Folder::copy("gemma2");
    let caps = |folder: &Folder| {
        let model = folder.open().expect("it opens");
        (model.spec().attention.softcap, model.spec().logits_softcap)
    };
    assert_eq!(caps(&folder), (Some(20.0), Some(15.0)));
    folder.edit(
        "config.json",
        &json!({"attn_logit_softcapping": null, "final_logit_softcapping": null}),
    );
    assert_eq!(caps(&folder), (None, None));
    let mut config: Value = serde_json::from_slice(&folder.read("config.json")).expect("JSON");
    let fields = config.as_object_mut().expect("an object");
    fields.remove("attn_logit_softcapping");
    fields.remove("final_logit_softcapping");
    folder.write("config.json", config.to_string());
    assert_eq!(caps(&folder), (Some(50.0), Some(30.0)));
}

#[test]
fn layers_with_experts_follow_the_config() {
    let sparse = |changes: Value| -> Result<Vec<bool>, String> {
        let folder = Folder::copy("qwen3-moe");
        folder.edit("config.json", &changes);
        let spec = ModelSpec::from_json("config.json", &folder.read("config.json"))
            .map_err(|error| error.to_string())?;
        Ok(spec.layers.iter().map(|layer| layer.experts).collect())
    };
    assert_eq!(sparse(json!({})), Ok(vec![true, true]));
    assert_eq!(
        sparse(json!({"num_local_experts": null, "num_experts": 8})),
        Ok(vec![true, true]),
        "the older name"
    );
    assert_eq!(
        sparse(json!({"decoder_sparse_step": 2})),
        Ok(vec![false, true])
    );
    assert_eq!(
        sparse(json!({"mlp_only_layers": [1]})),
        Ok(vec![true, false])
    );
    assert_eq!(
        sparse(json!({"decoder_sparse_step": 3})),
        Ok(vec![false, false])
    );
    let expected = "config.json: num_experts_per_tok is 9, more than num_local_experts = 8";
    assert_eq!(
        sparse(json!({"num_experts_per_tok": 9})),
        Err(expected.into())
    );
    let expected = "config.json: num_experts is missing";
    assert_eq!(
        sparse(json!({"num_local_experts": null})),
        Err(expected.into())
    );
}

#[test]
fn layers_without_rotation_follow_the_config() {
    let rotated = |changes: Value| -> Vec<bool> {
        let folder = Folder::copy("smollm3");
        folder.edit("config.json", &changes);
        folder
            .open()
            .expect("it opens")
            .spec()
            .layers
            .iter()
            .map(|layer| layer.rope.is_some())
            .collect()
    };
    assert_eq!(rotated(json!({})), [true, false]);
    assert_eq!(
        rotated(json!({"no_rope_layers": null})),
        [true, true],
        "each fourth layer has none"
    );
    assert_eq!(
        rotated(json!({"no_rope_layers": null, "no_rope_layer_interval": 1})),
        [false, false]
    );
}

/// Embedding models are saved so: the class without a head has no prefix `model.`, whatever the config says of a head.
#[test]
fn checkpoints_of_the_class_without_a_head_load() {
    for (family, tied) in [
        ("qwen3", true),
        ("qwen3", false),
        ("qwen2", false),
        ("gemma3", true),
        ("llama", false),
    ] {
        let folder = Folder::copy(family);
        let expected = upload(&folder.open().expect("the golden model loads"));
        let (header, data) = folder.tensors();
        let bare = |name: &str| match name {
            "lm_head.weight" => "unused.weight".to_owned(),
            _ => name.trim_start_matches("model.").to_owned(),
        };
        let bare = header
            .iter()
            .map(|(name, info)| (bare(name), info.clone()))
            .collect();
        folder.write_tensors("model.safetensors", &bare, &data);
        folder.edit("config.json", &json!({"tie_word_embeddings": tied}));
        let found = upload(
            &folder
                .open()
                .unwrap_or_else(|error| panic!("{family}: {error}")),
        );
        assert!(
            found
                .iter()
                .all(|(name, weight)| expected.get(name) == Some(weight)),
            "{family}"
        );
        assert!(
            found.contains_key("embedding") && !found.contains_key("head"),
            "{family}"
        );
    }
}

#[test]
fn shards_hold_the_same_weights_as_one_file() {
    let folder = Folder::copy("qwen2");
    let single = upload(&folder.open().expect("it opens"));
    folder.shard();
    assert_eq!(upload(&folder.open().expect("the shards open")), single);
}

#[test]
fn every_stored_type_gives_the_same_numbers() {
    let folder = Folder::copy("llama");
    let stored = upload(&folder.open().expect("it opens"));
    let (mut header, data) = folder.tensors();
    let mut widened = Vec::new();
    for (name, info) in header
        .iter_mut()
        .filter(|(name, _)| *name != "__metadata__")
    {
        let offset =
            |index: usize| info["data_offsets"][index].as_u64().expect("an offset") as usize;
        let values = &data[offset(0)..offset(1)];
        let start = widened.len();
        // Converts some tensors to f32, so that q, k and v of one layer differ in type.
        if name.contains("k_proj") || name.contains("norm") {
            let decode = |index| {
                WeightFormat::Bf16
                    .decode(values, values.len() / 2, index)
                    .to_le_bytes()
            };
            widened.extend((0..values.len() / 2).flat_map(decode));
            info["dtype"] = json!("F32");
        } else {
            widened.extend_from_slice(values);
        }
        info["data_offsets"] = json!([start, widened.len()]);
    }
    folder.write_tensors("model.safetensors", &header, &widened);
    let model = folder.open().expect("mixed types open");
    assert_eq!(upload(&model), stored);
    let plan = model.record(Storage::F32);
    let formats = |name: &str| {
        let weight = plan
            .weights
            .iter()
            .find(|weight| weight.name == name)
            .expect("a weight of the plan");
        weight
            .sections
            .iter()
            .map(|section| section.format)
            .collect::<Vec<_>>()
    };
    let (bf16, f32) = (WeightFormat::Bf16, WeightFormat::F32);
    assert_eq!(
        formats("layers.0.qkv"),
        [bf16, f32, bf16],
        "every part stays as stored"
    );
    assert_eq!(formats("layers.0.down"), [bf16]);
}

#[test]
fn generation_defaults_and_end_tokens_are_read() {
    let folder = Folder::copy("llama");
    folder.edit("config.json", &json!({"eos_token_id": [7, 2]}));
    folder.edit(
        "generation_config.json",
        &json!({"eos_token_id": [2, 9], "temperature": 0.6, "top_k": -1}),
    );
    let model = folder.open().expect("it opens");
    let generation = model.generation();
    assert_eq!(generation.eos_token_ids, [7, 2, 9]);
    let DrawParams {
        temperature,
        top_k,
        top_p,
        ..
    } = generation.draw.over(DrawParams::default());
    assert_eq!(
        (temperature, top_k, top_p),
        (0.6, 0, 1.0),
        "what the file does not say is the default"
    );
    fs::remove_file(folder.path("generation_config.json")).expect("it goes");
    assert_eq!(
        folder
            .open()
            .expect("it opens without")
            .generation()
            .eos_token_ids,
        [7, 2]
    );
    let demo = Model::demo();
    assert_eq!(demo.generation().eos_token_ids, [4091, 4089]);
    assert_eq!(demo.generation().draw.top_p, Some(0.9));
}

#[test]
fn windows_follow_the_config() {
    let windows = |name: &str, changes: Value| -> Vec<Option<u32>> {
        let folder = Folder::copy(name);
        folder.edit("config.json", &changes);
        let model = folder.open().expect("it opens");
        model
            .spec()
            .layers
            .iter()
            .map(|layer| layer.window.map(Window::tokens))
            .collect()
    };
    assert_eq!(windows("mistral-window", json!({})), [Some(24), Some(24)]);
    assert_eq!(
        windows("mistral-window", json!({"sliding_window": null})),
        [None, None]
    );
    assert_eq!(
        windows("mistral-window", json!({"sliding_window": 512})),
        [None, None],
        "it hides nothing"
    );
    assert_eq!(
        windows("llama", json!({"sliding_window": 24})),
        [None, None],
        "Llama has no windows"
    );
    let upper = json!({"use_sliding_window": true, "sliding_window": 32, "max_window_layers": 1, "layer_types": null});
    assert_eq!(windows("qwen3", upper), [None, Some(32)]);
    let kinds = json!({"use_sliding_window": true, "sliding_window": 32,
        "layer_types": ["sliding_attention", "full_attention"]});
    assert_eq!(windows("qwen2", kinds), [Some(32), None]);
}

#[test]
fn random_models_have_their_shape_and_depend_on_the_seed_alone() {
    let weights = |seed| {
        upload(&Model::random(
            ModelSpec::named("64x2x4x2x16x96x256").expect("a shape"),
            seed,
        ))
    };
    let first = weights(1);
    assert_eq!(first, weights(1));
    assert_ne!(first, weights(2));
    let qkv = &first["layers.1.qkv"];
    assert_eq!(qkv.len(), (4 + 2 + 2) * 16 * 64);
    let size = (qkv
        .iter()
        .map(|value| f64::from(*value).powi(2))
        .sum::<f64>()
        / qkv.len() as f64)
        .sqrt();
    assert!(
        (0.5..2.0).contains(&(size * 64_f64.sqrt())),
        "elements are about 1 / sqrt(columns), not {size}"
    );
    assert!(first["final_norm"].iter().all(|value| *value == 1.0));
}

#[test]
fn chunks_are_whole_rows_in_order_and_small() {
    let model = Model::random(
        ModelSpec::named("40x1x1x1x8x8x1300000").expect("a shape"),
        3,
    );
    let plan = model.record(Storage::F32);
    let (mut next_row, mut chunks) = (0, 0);
    let uploaded = block_on(model.upload(
        &plan,
        |id, first_row, bytes| -> Result<(), Infallible> {
            let spec = plan.weight_spec(id);
            assert!(
                bytes.len() <= 4 << 20,
                "{} bytes of {}",
                bytes.len(),
                spec.name
            );
            if spec.name == "embedding" {
                assert_eq!(first_row, next_row);
                next_row += (bytes.len() as u64 / spec.row_bytes(first_row)) as u32;
                chunks += 1;
            }
            Ok(())
        },
    ));
    uploaded.expect("it uploads");
    assert_eq!(
        (next_row, chunks),
        (1_300_000, 25),
        "104 MB in pieces of at most 4 MiB"
    );
}

#[test]
fn a_file_cut_short_while_it_loads_is_an_error() {
    let folder = Folder::copy("llama");
    let model = folder.open().expect("it opens");
    let plan = model.record(Storage::F32);
    let file = fs::OpenOptions::new()
        .write(true)
        .open(folder.path("model.safetensors"))
        .expect("it opens");
    let mut chunks = 0;
    let error = block_on(model.upload(&plan, |_, _, _| -> Result<(), Infallible> {
        chunks += 1;
        if chunks == 3 {
            file.set_len(4096).expect("it can be cut");
        }
        Ok(())
    }));
    assert_eq!(
        chunks, 3,
        "nothing is read once the file has another length"
    );
    assert!(
        matches!(error, Err(UploadError::Load(LoadError::Changed { .. }))),
        "{error:?}"
    );
}

#[test]
fn a_file_overwritten_while_it_loads_is_an_error() {
    let folder = Folder::copy("llama");
    let model = folder.open().expect("it opens");
    let plan = model.record(Storage::F32);
    // Some file systems keep the time of modification to a few milliseconds.
    std::thread::sleep(std::time::Duration::from_millis(50));
    let mut chunks = 0;
    let error = block_on(model.upload(&plan, |_, _, _| -> Result<(), Infallible> {
        chunks += 1;
        if chunks == 3 {
            let bytes = folder.read("model.safetensors").len();
            folder.write("model.safetensors", vec![0; bytes]);
        }
        Ok(())
    }));
    assert!(
        matches!(error, Err(UploadError::Load(LoadError::Changed { .. }))),
        "{error:?}"
    );
}

#[test]
fn an_upload_ends_with_the_first_error_of_the_device() {
    let model = Model::demo();
    let error = block_on(model.upload(&model.record(Storage::F32), |_, _, _| Err("full")));
    assert!(
        matches!(error, Err(UploadError::Write("full"))),
        "{error:?}"
    );
}

/// Changes to a valid `config.json`, and the resulting error; `…` stands for the rest of a list.
const CONFIG_FAULTS: &[(&str, &str)] = &[
    (
        r#"{"architectures": ["FooForCausalLM"]}"#,
        "architecture \"FooForCausalLM\" is not supported; expected one of LlamaForCausalLM, …",
    ),
    (
        r#"{"architectures": ["XcodecModel"], "num_codebooks": 4}"#,
        "architecture \"XcodecModel\" is not supported; num_codebooks means several codebooks, which …",
    ),
    (
        r#"{"architectures": ["Qwen3VLForCausalLM"]}"#,
        "architecture \"Qwen3VLForCausalLM\" is not supported; the nearest supported one is Qwen3VL…",
    ),
    (
        r#"{"architectures": null, "model_type": null}"#,
        "architectures is missing",
    ),
    (
        r#"{"architectures": [1]}"#,
        "architectures holds something that is not a name",
    ),
    (
        r#"{"num_hidden_layers": 0}"#,
        "num_hidden_layers is 0, not an integer in 1..=1024",
    ),
    (
        r#"{"num_hidden_layers": 1000000000}"#,
        "num_hidden_layers is 1000000000, not an integer in 1..=1024",
    ),
    (
        r#"{"num_hidden_layers": 1.5}"#,
        "num_hidden_layers is 1.5, not an integer in 1..=1024",
    ),
    (r#"{"hidden_size": null}"#, "hidden_size is missing"),
    (
        r#"{"hidden_size": "64"}"#,
        r#"hidden_size is "64", not an integer in 8..=65536"#,
    ),
    (
        r#"{"hidden_size": 60}"#,
        "hidden_size is 60, not a multiple of 8",
    ),
    (
        r#"{"intermediate_size": 100}"#,
        "intermediate_size is 100, not a multiple of 8",
    ),
    (
        r#"{"head_dim": 0}"#,
        "head_dim is 0, not an integer in 8..=512",
    ),
    (r#"{"head_dim": 20}"#, "head_dim is 20, not a multiple of 8"),
    (
        r#"{"head_dim": 520}"#,
        "head_dim is 520, not an integer in 8..=512",
    ),
    (
        r#"{"head_dim": null, "num_attention_heads": 6, "num_key_value_heads": 3}"#,
        "num_attention_heads is 6, which does not divide hidden_size = 64",
    ),
    (
        r#"{"head_dim": null, "num_attention_heads": 16}"#,
        "head_dim would be 4, not a multiple of 8 up to 512",
    ),
    (
        r#"{"num_key_value_heads": 3}"#,
        "num_key_value_heads is 3, which does not divide num_attention_heads = 4",
    ),
    (
        r#"{"num_attention_heads": 34}"#,
        "num_key_value_heads is 2: more than 16 of 34 query heads would share one",
    ),
    (
        r#"{"num_attention_heads": 0}"#,
        "num_attention_heads is 0, not an integer in 1..=1024",
    ),
    (
        r#"{"vocab_size": 2147483648}"#,
        "vocab_size is 2147483648, not an integer in 1..=16777216",
    ),
    (
        r#"{"max_position_embeddings": 0}"#,
        "max_position_embeddings is 0, not an integer in 2..=16777216",
    ),
    (
        r#"{"rms_norm_eps": 0}"#,
        "rms_norm_eps is 0, not a number in 1e-12..=0.1",
    ),
    (
        r#"{"rope_parameters": {"rope_theta": 0.0}}"#,
        "rope_parameters.rope_theta is 0.0, not a number in 0.001..=1e30",
    ),
    (
        r#"{"rope_parameters": {"rope_theta": -1}}"#,
        "rope_parameters.rope_theta is -1, not a number in 0.001..=1e30",
    ),
    (
        r#"{"rope_parameters": null, "rope_theta": "1e4"}"#,
        r#"rope_theta is "1e4", not a number in 0.001..=1e30"#,
    ),
    (
        r#"{"rope_parameters": {"rope_type": "yarn"}}"#,
        "rope_parameters.factor is missing",
    ),
    (
        r#"{"rope_parameters": {"rope_type": "ntk"}}"#,
        r#"rope_parameters.rope_type is "ntk", not default, linear, llama3, yarn or longrope"#,
    ),
    (
        r#"{"rope_parameters": {"rope_type": "longrope"}}"#,
        "original_max_position_embeddings is missing",
    ),
    (
        r#"{"original_max_position_embeddings": 64, "rope_scaling": {"type": "su", "short_factor": [1]},
            "rope_parameters": null}"#,
        "rope_scaling.short_factor is not 8 numbers above zero",
    ),
    (
        r#"{"rope_parameters": {"rope_type": "linear"}}"#,
        "rope_parameters.factor is missing",
    ),
    (
        r#"{"rope_parameters": null,
            "rope_scaling": {"type": "llama3", "low_freq_factor": 4, "high_freq_factor": 4}}"#,
        "rope_scaling.low_freq_factor is 4, not below high_freq_factor = 4",
    ),
    (
        r#"{"rope_parameters": [1]}"#,
        "rope_parameters is [1], not an object",
    ),
    (
        r#"{"partial_rotary_factor": 0.01}"#,
        "partial_rotary_factor is 0.01: it rotates 0 of 16 elements, not an even number",
    ),
    (
        r#"{"hidden_act": "mish"}"#,
        r#"hidden_act is "mish", not silu, gelu, gelu_pytorch_tanh, relu, relu2 or xielu"#,
    ),
    (
        r#"{"tie_word_embeddings": "no"}"#,
        r#"tie_word_embeddings is "no", not true or false"#,
    ),
    (
        r#"{"quantization_config": {"quant_method": "hqq"}}"#,
        concat!(
            r#"quantization_config.quant_method is "hqq", which is not supported: gptq, auto-round, awq, fp8, "#,
            "fbgemm_fp8, compressed-tensors, modelopt, bitsandbytes and mxfp4 are",
        ),
    ),
    (
        r#"{"quantization_config": {"quant_method": "gptq", "bits": 9}}"#,
        "quantization_config.bits is 9, not 2 to 8",
    ),
    (
        r#"{"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 48}}"#,
        "quantization_config.group_size is 48, not a power of two from 16 to 1024 or -1",
    ),
];
