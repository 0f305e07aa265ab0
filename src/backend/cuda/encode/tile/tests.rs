//! Tests of `backend/cuda/encode/tile.rs`.

use super::*;

/// Compares with the values that `cuda/common/tile.cuh` computes, recorded from a build of it.
#[test]
fn shared_memory_is_what_the_kernels_use() {
    let bytes = |size, format| {
        let tile = Tile::new(size, format, 227 << 10);
        (tile.stages, tile.threads(), tile.shared_bytes(format))
    };
    assert_eq!(bytes(Size::Tiny, WeightFormat::Bf16), (4, 256, 81_984));
    assert_eq!(bytes(Size::Large, WeightFormat::Bf16), (3, 256, 98_816));
    assert_eq!(bytes(Size::Wide, WeightFormat::Bf16), (3, 256, 147_968));
    for (format, expected) in [
        (WeightFormat::Q8, 155_136),
        (WeightFormat::Q4, 137_728),
        (WeightFormat::Q5, 143_872),
        (WeightFormat::Mxfp4, 129_024),
        (WeightFormat::E4m3, 153_600),
        (WeightFormat::Q2K, 132_096),
        (WeightFormat::Q3K, 130_048),
        (WeightFormat::Q5K, 142_336),
    ] {
        assert_eq!(bytes(Size::Large, format), (3, 256, expected), "{format}");
    }
}

/// Blocks of older or smaller devices have 48 or 99 KiB.
#[test]
fn every_format_has_a_tile_that_fits() {
    for format in WeightFormat::ALL
        .into_iter()
        .filter(|format| *format != WeightFormat::F32)
    {
        for size in [
            Size::Tiny,
            Size::Small,
            Size::Middle,
            Size::Large,
            Size::Wide,
        ] {
            for most in [48 << 10, 99 << 10, 163 << 10, 227 << 10] {
                let tile = Tile::new(size, format, most);
                assert!(
                    tile.shared_bytes(format) + 4 * tile.rows + 16 <= most,
                    "{format} {size:?} {most}"
                );
                let adds_up = (tile.slices - 1) * tile.rows * tile.outputs * 4;
                let stages = tile.shared_bytes(format)
                    - 4 * tile.rows
                    - tile.warps() * tile.warp_scale_bytes(format);
                assert!(adds_up <= stages, "{format} {size:?} {most}");
            }
        }
    }
}
