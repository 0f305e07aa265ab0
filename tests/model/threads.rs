//! The number of threads of the CPU device changes no answer.

use super::kv_q8::{alone, cases};
use super::{CHUNK, Device, FAMILIES, golden};
use folio::backend::cpu::{CpuBackend, CpuOptions};
use folio::model::Model;
use folio::plan::KvFormat;

/// One thread, two, an odd number, and more than the machine has processors.
#[test]
fn answers_have_the_same_bits_with_any_number_of_threads() {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    for (family, _) in FAMILIES {
        let (cases, model) = (cases(family), Model::open(&golden(family)).expect("the golden model loads"));
        let answers = |threads| {
            let mut cpu = CpuBackend::new(&CpuOptions { threads: Some(threads), ..CpuOptions::default() });
            let mut device = Device::new(&mut cpu, &model, KvFormat::F16);
            (alone(&mut device, &cases, CHUNK), device.generate(&cases, CHUNK, true))
        };
        let expected = answers(1);
        assert!(expected.0 == expected.1, "{family}: a batch equals its members, bit for bit");
        for threads in [2, 3, processors + 2] {
            assert!(answers(threads) == expected, "{family}: {threads} threads");
        }
    }
}
