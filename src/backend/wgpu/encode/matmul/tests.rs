//! Tests of matmul.

use super::*;

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
                    let size = Size {
                        rows,
                        eights: columns / 8,
                        outputs,
                        format,
                    };
                    let shape = Shape::choose(&profile, false, &size);
                    let (splits, span) = shape.splits(&profile, false, &size);
                    let workgroups = shape.workgroups(&size) * splits;
                    // Shorter parts would take less time than their merge.
                    let cannot_split = shape.span_min().is_some_and(|least| span < 2 * least);
                    let what = format!(
                        "{rows} rows, {columns} columns, {outputs} outputs, {cores} cores: {shape:?}"
                    );
                    assert!(
                        workgroups >= 2 * cores || cannot_split,
                        "{what}: {workgroups} workgroups"
                    );
                    assert!(
                        (splits - 1) * span < columns && splits * span >= columns,
                        "{what}: parts of {span}"
                    );
                    assert!(
                        splits == 1 || span.is_multiple_of(SPAN_COLUMNS),
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
            let size = Size {
                rows,
                eights: columns / 8,
                outputs,
                format: WeightFormat::Bf16,
            };
            let shape = Shape::choose(&profile, false, &size);
            let (splits, _) = shape.splits(&profile, false, &size);
            assert!(
                splits == 1 || u64::from(splits * rows * outputs) * 4 <= most,
                "{rows} × {columns} × {outputs}"
            );
        }
    }
}
