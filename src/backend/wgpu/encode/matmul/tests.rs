//! Tests of matmul.

use super::super::super::device::{Tier, Tuning};
use super::shape::SPAN_COLUMNS;
use super::*;
use crate::plan::WeightFormat;

/// Columns and rows of the products of a layer, and of the LM head, of the shapes of `folio bench`.
const PRODUCTS: [(u32, u32); 10] = [
    // qwen3-0.6b
    (1024, 4096),
    (2048, 1024),
    (1024, 6144),
    (3072, 1024),
    (1024, 151_936),
    // llama-3-8b
    (4096, 6144),
    (4096, 4096),
    (4096, 28_672),
    (14_336, 4096),
    (4096, 128_256),
];

/// Every core has at least two workgroups, unless the columns cannot be split further.
#[test]
fn grids_fill_the_device() {
    for cores in [10, 20, 40, 96, 132] {
        let profile = Profile {
            cores,
            ..super::super::test_profile(Class::Discrete, Tier::T1, true)
        };
        for (columns, outputs) in PRODUCTS {
            for rows in [1, 2, 4, 8, 16, 32, 64, 512] {
                for format in [WeightFormat::Bf16, WeightFormat::Q4] {
                    let shape = MatmulShape {
                        rows,
                        eights: columns / 8,
                        outputs,
                        format,
                    };
                    let tiling = Tiling::choose(&profile, false, &shape);
                    let split = SplitK::choose(&profile, false, tiling, &shape);
                    let SplitK { parts, span } = split;
                    let workgroups = tiling.workgroups(&shape) * parts;
                    // Shorter parts would take less time than their merge.
                    let cannot_split = tiling.span_min().is_some_and(|least| span < 2 * least);
                    let what = format!(
                        "{rows} rows, {columns} columns, {outputs} outputs, {cores} cores: {tiling:?}"
                    );
                    assert!(
                        workgroups >= 2 * cores || cannot_split,
                        "{what}: {workgroups} workgroups"
                    );
                    assert!(
                        (parts - 1) * span < columns && parts * span >= columns,
                        "{what}: parts of {span}"
                    );
                    assert!(
                        parts == 1 || span.is_multiple_of(SPAN_COLUMNS),
                        "{what}: whole groups"
                    );
                }
            }
        }
    }
}

/// The scratch is no larger than what fills the device: a tile for each workgroup.
#[test]
fn partial_sums_take_little_memory() {
    for cores in [1, 20, 132] {
        let profile = Profile {
            cores,
            ..super::super::test_profile(Class::Integrated, Tier::T0, true)
        };
        let most =
            u64::from(profile.product_workgroups() * Tuning::LARGEST.tile_rows * TILE_OUTPUTS) * 4;
        for (rows, columns, outputs) in [
            (1, 8000, 8),
            (16, 4096, 100),
            (33, 14_336, 129),
            (512, 2048, 1024),
        ] {
            let shape = MatmulShape {
                rows,
                eights: columns / 8,
                outputs,
                format: WeightFormat::Bf16,
            };
            let tiling = Tiling::choose(&profile, false, &shape);
            let split = SplitK::choose(&profile, false, tiling, &shape);
            assert!(
                !split.is_split() || split.sums_bytes(&shape) <= most,
                "{rows} × {columns} × {outputs}"
            );
        }
    }
}

fn shape(rows: u32, columns: u32, outputs: u32, format: WeightFormat) -> MatmulShape {
    MatmulShape {
        rows,
        eights: columns / 8,
        outputs,
        format,
    }
}

/// From nine rows on, computing takes longer than reading weights of four bits, so that the matrix units pay.
#[test]
fn matrices_multiply_from_nine_rows_on_unless_tuned() {
    let mut profile = super::super::test_profile(Class::Discrete, Tier::T2, true);
    let is_by_matrices = |profile: &Profile, rows| {
        let shape = shape(rows, 4096, 4096, WeightFormat::Q4);
        matches!(
            Tiling::choose(profile, false, &shape),
            Tiling::Matrices { .. }
        )
    };
    let first = |profile: &Profile| (1..64).find(|&rows| is_by_matrices(profile, rows));
    assert_eq!(first(&profile), Some(9));
    profile.tuning.few_rows = 16;
    assert_eq!(first(&profile), Some(17));
    profile.tuning.matrices = 0;
    assert_eq!(first(&profile), None);
}

/// A split beyond what fills the device reads and writes little in comparison with the weights.
#[test]
fn partial_sums_are_few_or_fill_the_device() {
    let profile = Profile {
        cores: 64,
        ..super::super::test_profile(Class::Discrete, Tier::T2, true)
    };
    for format in [WeightFormat::Q4, WeightFormat::Q8, WeightFormat::Bf16] {
        for rows in [1, 8, 16, 33, 64, 128, 512] {
            for (columns, outputs) in [(1024, 1024), (4096, 1024), (4096, 4096), (14_336, 4096)] {
                let shape = shape(rows, columns, outputs, format);
                let tiling = Tiling::choose(&profile, false, &shape);
                let split = SplitK::choose(&profile, false, tiling, &shape);
                let weight_bytes = format.row_bytes(columns) * u64::from(outputs);
                let fills = (split.parts - 1) * tiling.workgroups(&shape) < 2 * profile.cores;
                assert!(
                    !split.is_split() || fills || 4 * split.sums_bytes(&shape) <= weight_bytes,
                    "{rows} × {columns} × {outputs} {format:?}: {split:?}"
                );
            }
        }
    }
}
