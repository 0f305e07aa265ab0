//! Any bytes given as a GGUF file must load as a model whose weights can be read, or return an error. The input is the
//! header of a file, whose tensors are small positive numbers.
#![no_main]

use bytes::Bytes;
use folio::model::{Gguf, Model};
use folio::plan::Storage;
use folio::platform::{ModelFile, block_on};
use folio::text::{TextModel, Tokenizer};
use libfuzzer_sys::fuzz_target;
use std::convert::Infallible;

/// Bytes available for tensors; enough for the seeds.
const TENSOR_BYTES: usize = 1 << 20;
/// Each of them: 0.75 in f32 and bf16, 1.8 in f16. Some tensors must be positive.
const TENSOR_BYTE: u8 = 0x3f;

fuzz_target!(|head: &[u8]| {
    let mut file = head.to_vec();
    file.resize(head.len() + TENSOR_BYTES, TENSOR_BYTE);
    let file = ModelFile::in_memory(Bytes::from(file));
    let Ok(gguf) = Gguf::from_files(vec![("fuzzed.gguf".into(), file)]) else {
        return;
    };
    let texts = gguf.texts();
    if let (Ok(Some(vocabulary)), Ok(config)) = (texts.vocabulary(), texts.tokenizer_config_json())
    {
        let tokens = vocabulary
            .tokens
            .iter()
            .map(|(text, id)| (text.as_ref(), *id));
        let tokenizer =
            Tokenizer::from_tables(&vocabulary.tokenizer_json, tokens, &vocabulary.merges);
        let _ = TextModel::with_tokenizer(tokenizer.ok(), Some(&config), None);
    }
    let Ok(model) = Model::from_gguf(gguf) else {
        return;
    };
    let plan = model.record(Storage::F32);
    let uploaded = block_on(model.upload(&plan, |_, _, _| Ok::<_, Infallible>(())));
    uploaded.expect("what has been resolved can be read");
});
