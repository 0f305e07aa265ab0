//! Tests of `backend/cuda/encode/matmul_tile.rs`.

use super::super::super::driver::Products;
use super::*;

#[test]
fn splits_fit_into_their_scratch() {
    let device = Facts {
        name: String::new(),
        compute: (9, 0),
        sm_count: 132,
        shared_bytes_max: 227 << 10,
        memory_bytes: 0,
        products: Products::default(),
        warpgroups: false,
        versions: String::new(),
    };
    for rows in [1, 9, 17, 40, 64, 65, 100, 500, 2048] {
        for outputs in [1, 64, 1000, 4096, 152_000] {
            for columns in [8, 1024, 14_336] {
                let tile = choose(&device, false, rows, outputs, WeightFormat::Q4K);
                let tiles = rows.div_ceil(tile.rows) * outputs.div_ceil(tile.outputs);
                let splits = splits(&device, tile, tiles, columns);
                let sums = u64::from(tiles * splits) * u64::from(tile.rows * tile.outputs) * 4;
                assert!(
                    splits == 1 || sums <= scratch_bytes(&device),
                    "{rows} × {columns} × {outputs}"
                );
                assert!(
                    splits == 1 || tiles <= counters(&device),
                    "{rows} × {columns} × {outputs}"
                );
            }
        }
    }
}
