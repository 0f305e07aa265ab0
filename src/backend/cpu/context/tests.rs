//! Attention over a context, against sums in f64.

use super::super::simd::{Level, with_simd};
use super::*;
use crate::plan::format::KvTile;

/// Keys read as values are the values that the same rows would be.
#[test]
fn keys_are_read_as_values() {
    for format in KvFormat::ALL {
        let tile = KvTile {
            format,
            slots: 32,
            head_dim: 40,
        };
        let stores = [KvHalf::Key, KvHalf::Value].map(|half| {
            let mut store = KvStore::new(tile, half, 3).unwrap();
            let values: Vec<f32> = (0..store.elements())
                .map(|at| (at as f32 * 12.9898).sin())
                .collect();
            store.write_all(&values);
            store
        });
        for level in Level::available() {
            let read = stores.each_ref().map(|store| {
                let context = Context {
                    store,
                    half: KvHalf::Value,
                    table: &[2, 0, NONE],
                    heads: 1,
                    head: 0,
                    ahead: None,
                };
                let mut out = vec![[f32::NAN; LANES]; 3 * 64];
                with_simd!(level, s => context.decode(s, 0..3, 32..96, &mut out));
                // Elements beyond the head are not defined.
                let defined = |(at, lanes): (usize, &Lanes)| {
                    lanes[..if at / 64 == 2 { 8 } else { LANES }].to_vec()
                };
                out.iter().enumerate().map(defined).collect::<Vec<_>>()
            });
            assert!(read[0] == read[1], "{format} {level}");
        }
    }
}

#[test]
fn panels_hold_what_the_format_says() {
    for (format, half) in KvFormat::ALL
        .into_iter()
        .flat_map(|f| [(f, KvHalf::Key), (f, KvHalf::Value)])
    {
        let tile = KvTile {
            format,
            slots: 32,
            head_dim: 24,
        };
        let mut store = KvStore::new(tile, half, 6).unwrap();
        let values: Vec<f32> = (0..store.elements())
            .map(|at| (at as f32 * 12.9898).sin())
            .collect();
        store.write_all(&values);
        store.copy(0, 4, 2);
        let (read, mut expected) = (store.read_all(), vec![0.0; 24]);
        let mut packed = vec![0; tile.words()];
        for (row, (values, read)) in values
            .chunks(24)
            .zip(read.chunks(24))
            .take(4 * 32)
            .enumerate()
        {
            tile.encode(&mut packed, row % 32, values);
            tile.decode(&packed, row % 32, &mut expected);
            assert_eq!(read, expected, "{format}");
        }
        assert_eq!(read[..2 * 32 * 24], read[4 * 32 * 24..]);
        // Blocks 1 and 2 hold positions 0 to 63 of head 1.
        let context = Context {
            store: &store,
            half,
            table: &[1, 2, NONE],
            heads: 2,
            head: 1,
            ahead: None,
        };
        for level in Level::available() {
            let (panels, columns) = if half == KvHalf::Key {
                (1..6, 0..24)
            } else {
                (0..2, 32..96)
            };
            let mut out = vec![[f32::NAN; LANES]; panels.len() * columns.len()];
            with_simd!(level, s => context.decode(s, panels.clone(), columns.clone(), &mut out));
            for (at, lane) in (0..out.len()).flat_map(|at| (0..LANES).map(move |lane| (at, lane))) {
                let (output, column) = (
                    (panels.start + at / columns.len()) * LANES + lane,
                    columns.start + at % columns.len(),
                );
                let (position, element) = if half == KvHalf::Key {
                    (output, column)
                } else {
                    (column, output)
                };
                if element >= 24 {
                    continue;
                }
                let tile = [2 + 1, 4 + 1].get(position / 32);
                let expected =
                    tile.map_or(0.0, |tile| read[(tile * 32 + position % 32) * 24 + element]);
                assert_eq!(
                    out[at][lane], expected,
                    "{format} {level} {position} {element}"
                );
            }
        }
    }
}
