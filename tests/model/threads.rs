//! The CPU device's threads: their number changes no answer, and they allocate nothing in a step.

use super::kv_coded::{alone, cases};
use super::states::STATES;
use super::{CHUNK, Device, FAMILIES, WHOLE, families, golden, golden_cases};
use folio::backend::Backend as _;
use folio::backend::cpu::{CpuBackend, CpuOptions};
use folio::model::Model;
use folio::plan::KvFormat;

/// One thread, two, an odd number, and more than the machine has processors.
#[test]
fn answers_have_the_same_bits_with_any_number_of_threads() {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    for (family, _) in FAMILIES {
        let (cases, model) = (
            cases(family),
            Model::open(&golden(family)).expect("the golden model loads"),
        );
        let answers = |threads| {
            let mut cpu = CpuBackend::new(&CpuOptions {
                threads: Some(threads),
                ..CpuOptions::default()
            });
            let mut device = Device::new(&mut cpu, &model, KvFormat::F16);
            (
                alone(&mut device, &cases, CHUNK),
                device.generate(&cases, CHUNK, true),
            )
        };
        let expected = answers(1);
        assert!(
            expected.0 == expected.1,
            "{family}: a batch equals its members, bit for bit"
        );
        for threads in [2, 3, processors + 2] {
            assert!(answers(threads) == expected, "{family}: {threads} threads");
        }
    }
}

/// Steps reuse what earlier ones have allocated: prompts and single tokens of several sequences, drawn with top-k and
/// top-p, allocate their results and nothing else. One thread, so that it is the one whose allocations are counted.
#[test]
fn a_step_allocates_only_its_results() {
    for (family, _) in families().chain(super::selected(STATES)) {
        let (cases, model) = (
            golden_cases(family),
            Model::open(&golden(family)).expect("the golden model loads"),
        );
        let mut cpu = CpuBackend::new(&CpuOptions {
            threads: Some(1),
            ..CpuOptions::default()
        });
        let device = Device::new(&mut cpu, &model, KvFormat::F16);
        let mut sequences = device.sequences(&cases);
        let live: Vec<usize> = (0..cases.len()).collect();
        for what in ["prompts", "single tokens"] {
            let (mut inputs, sampled) = device.batch(&mut sequences, &live, WHOLE, true);
            for row in &mut inputs.samples {
                (row.draw.temperature, row.draw.top_k, row.draw.top_p) = (0.8, 40, 0.9);
            }
            let mut submit = || {
                drop(
                    device
                        .backend
                        .submit(&inputs)
                        .expect("the batch is accepted"),
                );
            };
            // An arena that had to grow keeps its largest part, so a few batches may pass until nothing grows.
            (0..3).for_each(|_| submit());
            let allocations = allocation_counter::measure(&mut submit).count_total;
            // The list of results, and the likeliest tokens of each.
            let results = 1 + sampled.len() as u64;
            assert_eq!(
                allocations,
                results,
                "{family}: {what} of {} sequences",
                cases.len()
            );
            sampled
                .iter()
                .for_each(|&index| sequences[index].tokens.push(0));
        }
    }
}
