//! Any bytes given as safetensors and a config must load as a model whose weights can be read, or return an error. The
//! input is a `config.json`, a zero byte, and the header of a safetensors file, whose tensors are zeros. An input
//! without a zero byte is a whole safetensors file.
#![no_main]

use bytes::Bytes;
use folio::model::{Model, Safetensors};
use folio::plan::Storage;
use folio::platform::{ModelFile, block_on};
use libfuzzer_sys::fuzz_target;
use std::convert::Infallible;

/// Bytes available for tensors; enough for the seeds.
const TENSOR_BYTES: usize = 448 << 10;
/// The config for inputs without one.
const CONFIG: &[u8] = include_bytes!("../llama.json");

fuzz_target!(|bytes: &[u8]| {
    let parts = bytes
        .iter()
        .position(|byte| *byte == 0)
        .filter(|at| *at > 0);
    let (config, file) = match parts {
        None => (CONFIG, bytes.to_vec()),
        Some(at) => {
            let header = &bytes[at + 1..];
            let mut file = (header.len() as u64).to_le_bytes().to_vec();
            file.extend(header);
            file.resize(file.len() + data_bytes(header), 0);
            (&bytes[..at], file)
        }
    };
    let file = ModelFile::in_memory(Bytes::from(file));
    let Ok(tensors) = Safetensors::from_files("fuzzed", vec![("fuzzed.safetensors".into(), file)])
    else {
        return;
    };
    let Ok(model) = Model::from_parts(config, None, Box::new(tensors)) else {
        return;
    };
    let plan = model.record(Storage::F32);
    let _ = block_on(model.upload(&plan, |_, _, _| Ok::<_, Infallible>(())));
});

/// Bytes of data that the header describes, within limits: the last number that ends a list, since a file must end
/// where its last tensor does.
fn data_bytes(header: &[u8]) -> usize {
    let ends = header.split(|byte| *byte == b']').filter_map(|list| {
        let digits = list.rsplit(|byte| !byte.is_ascii_digit()).next()?;
        std::str::from_utf8(digits).ok()?.parse::<usize>().ok()
    });
    ends.max().unwrap_or(0).min(TENSOR_BYTES)
}
