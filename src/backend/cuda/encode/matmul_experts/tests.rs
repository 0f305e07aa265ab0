//! Tests of `backend/cuda/encode/matmul_experts.rs`.

use super::super::super::arena::DeviceSection;
use super::*;

#[test]
fn what_repeats_from_expert_to_expert_is_one_part() {
    let section = |row_start, rows, format, address| DeviceSection {
        row_start,
        rows,
        format,
        address,
    };
    let plain = DeviceWeight {
        columns: 32,
        sections: vec![section(0, 40, WeightFormat::Bf16, 4096)],
    };
    let whole = parts(&plain, 10);
    assert_eq!(whole.len(), 1);
    assert_eq!(
        (whole[0].expert_count, whole[0].outputs, whole[0].stride),
        (4, 10, 640)
    );
    // Three experts of 10 rows: 7 packed and 3 dense each, 1024 bytes apart.
    let mixed = (0..6).map(|i| match i % 2 {
        0 => section(i / 2 * 10, 7, WeightFormat::Q8, u64::from(i) * 512),
        _ => section(i / 2 * 10 + 7, 3, WeightFormat::Bf16, u64::from(i) * 512),
    });
    let mixed = parts(
        &DeviceWeight {
            columns: 32,
            sections: mixed.collect(),
        },
        10,
    );
    let found: Vec<_> = mixed
        .iter()
        .map(|part| {
            (
                part.output_start,
                part.outputs,
                part.expert_count,
                part.stride,
            )
        })
        .collect();
    assert_eq!(found, [(0, 7, 3, 1024), (7, 3, 3, 1024)]);
}
