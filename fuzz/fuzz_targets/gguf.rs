//! A GGUF file of any bytes is a model or an error: `cargo +nightly fuzz run gguf fuzz/corpus/gguf tests/data/gguf`.
#![no_main]

use bytes::Bytes;
use folio::model::{Gguf, Model};
use folio::platform::MappedFile;
use folio::text::TextModel;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let file = MappedFile::in_memory(Bytes::copy_from_slice(bytes));
    let Ok(gguf) = Gguf::from_files(vec![("fuzzed.gguf".into(), file)]) else { return };
    let texts = gguf.texts();
    let _ = TextModel::from_parts(texts.tokenizer_json.as_deref(), Some(&texts.tokenizer_config_json), None);
    let _ = Model::from_gguf(gguf);
});
