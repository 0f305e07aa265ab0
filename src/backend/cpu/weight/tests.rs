//! Tests of `backend/cpu/weight.rs`.

use super::*;
use crate::plan::{Plan, Section as SpecSection};

#[test]
fn rows_read_back_as_they_were_written_in_any_order_and_format() {
    for format in WeightFormat::ALL {
        let mut plan = Plan::default();
        let parts = [(37, format), (5, WeightFormat::F32)]
            .map(|(rows, format)| SpecSection { rows, format });
        plan.weight_in_sections("w", 40, &parts);
        let spec = plan.weights.remove(0);
        let (mut matrix, mut team) = (Matrix::new(&spec).unwrap(), Team::new(2));
        let row_bytes = format.row_bytes(40) as usize;
        let bytes: Vec<u8> = (0..37 * row_bytes)
            .map(|at| (at * 7 % 251) as u8 & 0x7b)
            .collect();
        assert!(
            matrix.write(0, &bytes[1..], &mut team).is_err(),
            "not whole rows"
        );
        matrix
            .write(20, &bytes[20 * row_bytes..], &mut team)
            .unwrap();
        matrix
            .write(0, &bytes[..20 * row_bytes], &mut team)
            .unwrap();
        assert!(
            matrix.write(19, &bytes[..row_bytes], &mut team).is_err(),
            "written twice"
        );
        assert!(!matrix.is_whole());
        matrix.write(37, &[1; 5 * 160], &mut team).unwrap();
        assert!(matrix.is_whole());
        matrix
            .write(19, &bytes[19 * row_bytes..][..row_bytes], &mut team)
            .expect("rows of a whole matrix may be replaced");
        let mut found = [0.0; 40];
        for row in 0..37 {
            matrix.decode_row(row, &mut Vec::new(), &mut found);
            let expected: Vec<f32> = (0..40)
                .map(|at| format.decode(&bytes[row * row_bytes..][..row_bytes], 40, at))
                .collect();
            assert_eq!(found[..], expected, "{format} row {row}");
        }
    }
}
