//! Checkpoints read by byte ranges equal those read from disk, and every invalid one gives a clear one-line error.

use crate::builder::Item;
use crate::models::demo;
use bytes::Bytes;
use folio::model::remote::SizeRead;
use folio::model::{Gguf, LoadError, Model, RangeFiles, TensorRead};
use folio::plan::Storage;
use folio::platform::block_on;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs;
use std::ops::Range;

/// Files in memory that record the largest range read.
#[derive(Default)]
struct Memory {
    files: BTreeMap<String, Bytes>,
}

thread_local! {
    static LONGEST: RefCell<u64> = const { RefCell::new(0) };
}

impl Memory {
    fn golden(family: &str) -> Self {
        let folder = super::golden(family);
        let read = |name: &str| {
            fs::read(folder.join(name))
                .ok()
                .map(|bytes| (name.to_owned(), Bytes::from(bytes)))
        };
        let names = ["config.json", "generation_config.json", "model.safetensors"];
        Self {
            files: names.into_iter().filter_map(read).collect(),
        }
    }

    fn with(mut self, name: &str, bytes: impl Into<Bytes>) -> Self {
        self.files.insert(name.into(), bytes.into());
        self
    }

    fn without(mut self, name: &str) -> Self {
        self.files.remove(name);
        self
    }

    fn open(self) -> Result<Model, LoadError> {
        block_on(Model::open_remote(Box::new(self)))
    }

    fn error(self) -> String {
        self.open()
            .err()
            .map_or_else(|| "it opened".into(), |error| error.to_string())
    }
}

impl RangeFiles for Memory {
    fn size<'a>(&'a self, file: &'a str) -> SizeRead<'a> {
        Box::pin(async move { Ok(self.files.get(file).map(|bytes| bytes.len() as u64)) })
    }

    fn read<'a>(&'a self, file: &'a str, bytes: Range<u64>) -> TensorRead<'a> {
        LONGEST.with_borrow_mut(|longest| *longest = (*longest).max(bytes.end - bytes.start));
        Box::pin(
            async move { Ok(self.files[file].slice(bytes.start as usize..bytes.end as usize)) },
        )
    }
}

/// All weights, as bytes by name.
fn upload(model: &Model) -> BTreeMap<String, Vec<u8>> {
    let plan = model.record(Storage::F32);
    let mut weights: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let uploaded = block_on(
        model.upload(&plan, |id, _, bytes| -> Result<(), Infallible> {
            weights
                .entry(plan.weight_spec(id).name.clone())
                .or_default()
                .extend_from_slice(&bytes);
            Ok(())
        }),
    );
    uploaded.expect("it uploads");
    weights
}

#[test]
fn a_remote_gguf_is_the_one_on_disk() {
    let name = "tiny-llama-Q4_K_M.gguf";
    let path = super::packed::model("gguf").join(name);
    let files = Memory::default().with(name, fs::read(&path).expect("the file reads"));
    let remote = block_on(Gguf::open_remote(Box::new(files), name))
        .and_then(Model::from_gguf)
        .expect("it opens");
    let local = Gguf::open(&path)
        .and_then(Model::from_gguf)
        .expect("it opens");
    assert_eq!(
        remote.record(Storage::F32).to_string(),
        local.record(Storage::F32).to_string()
    );
    assert!(
        upload(&remote) == upload(&local),
        "the same bytes for the same weights"
    );
}

#[test]
fn a_remote_gguf_may_be_split() {
    let whole = demo();
    let (mut first, mut second) = (whole.clone(), whole);
    second.pairs.clear();
    second.tensors = first.tensors.split_off(20);
    let mut files = Memory::default();
    for (number, part) in [&mut first, &mut second].into_iter().enumerate() {
        part.set("split.no", Item::U16(number as u16));
        part.set("split.count", Item::U16(2));
        part.pack();
        files = files.with(
            &format!("BF16/m-{:05}-of-00002.gguf", number + 1),
            part.bytes(),
        );
    }
    let open =
        |files, name| block_on(Gguf::open_remote(Box::new(files), name)).and_then(Model::from_gguf);
    let alone = Memory {
        files: files.files.clone(),
    }
    .without("BF16/m-00002-of-00002.gguf");
    let model = open(files, "BF16/m-00001-of-00002.gguf").expect("both halves load");
    assert!(
        upload(&model) == upload(&Model::demo()),
        "the same bytes for the same weights"
    );
    let error = open(alone, "BF16/m-00001-of-00002.gguf")
        .err()
        .expect("it is refused")
        .to_string();
    assert_eq!(error, "BF16/m-00002-of-00002.gguf: there is no such file");
}

#[test]
fn a_remote_folder_is_the_one_on_disk() {
    for family in ["llama", "qwen2", "qwen3", "mistral-window"] {
        let folder = super::golden(family);
        let local = Model::open(&folder).expect("it opens");
        let remote = Memory::golden(family).open().expect("it opens");
        assert_eq!(upload(&remote), upload(&local), "{family}");
        assert_eq!(
            remote.generation().eos_token_ids,
            local.generation().eos_token_ids
        );
    }
    let file = Memory::golden("llama").files["model.safetensors"].len() as u64;
    assert!(
        LONGEST.with_borrow(|longest| *longest < file),
        "no read takes a whole file of weights"
    );
}

#[test]
fn what_is_wrong_is_told_by_file_and_tensor() {
    let golden = || Memory::golden("llama");
    let weights = golden().files["model.safetensors"].clone();
    let check = |memory: Memory, part: &str| {
        let error = memory.error();
        assert!(error.contains(part), "{error:?} says {part:?}");
    };
    check(
        golden().without("config.json"),
        "config.json: there is no such file",
    );
    check(
        golden().without("model.safetensors"),
        "model.safetensors: there is no such file",
    );
    let cut = golden().with("model.safetensors", weights.slice(..weights.len() - 7));
    check(cut, "is truncated: 7 bytes are missing");
    let long = [weights.as_ref(), b"more"].concat();
    check(
        golden().with("model.safetensors", long),
        "model.safetensors: incomplete metadata",
    );
    check(
        golden().with("model.safetensors", &b"1234"[..]),
        "model.safetensors: header too small",
    );
    check(
        golden().with("model.safetensors", &[255; 16][..]),
        "model.safetensors: header too large",
    );
    let start = [&50_u64.to_le_bytes()[..], b"{}"].concat();
    check(
        golden().with("model.safetensors", start),
        "model.safetensors: invalid header length",
    );
    let start = [&2_u64.to_le_bytes()[..], b"{]"].concat();
    check(
        golden().with("model.safetensors", start),
        "model.safetensors: invalid header",
    );
    let index = r#"{"weight_map": {"model.norm.weight": "../far.safetensors"}}"#;
    let indexed = || golden().without("model.safetensors");
    check(
        indexed().with("model.safetensors.index.json", index),
        "not a file of the model's folder",
    );
    let index = r#"{"weight_map": {"model.norm.weight": "far.safetensors"}}"#;
    check(
        indexed().with("model.safetensors.index.json", index),
        "far.safetensors: there is no such file",
    );
}
