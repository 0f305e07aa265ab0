//! Tests of attend.

use super::*;

const PLANNER: Planner = Planner {
    ratio: 4,
    window: None,
    lanes_max: 33,
    tile_rows: 128,
    splits: true,
};

/// A work list, read back: the items of each lane, and the tiles.
struct List {
    lanes: Vec<Vec<Vec<u32>>>,
    tiles: Vec<Vec<u32>>,
}

fn sequences(rows: &[(u32, u32)]) -> Vec<SequenceRows> {
    let mut row_start = 0;
    let sequence = |&(row_count, context_len): &(u32, u32)| {
        row_start += row_count;
        SequenceRows {
            row_start: row_start - row_count,
            row_count,
            context_len,
        }
    };
    rows.iter().map(sequence).collect()
}

fn list(planner: &Planner, rows: &[(u32, u32)]) -> List {
    let starts: Vec<u32> = (0..rows.len() as u32).map(|index| 1000 * index).collect();
    let mut words = vec![7; 3];
    planner.plan(&sequences(rows), &starts, &mut words);
    let words = &words[3..];
    let (lanes, items, tiles) = (words[0] as usize, words[1] as usize, words[2] as usize);
    let starts = &words[4..4 + lanes + 1];
    let all: Vec<Vec<u32>> = words[4 + lanes + 1..]
        .chunks_exact(12)
        .map(<[u32]>::to_vec)
        .collect();
    assert_eq!((all.len(), starts[lanes] as usize), (items + tiles, items));
    let lanes = starts
        .windows(2)
        .map(|pair| all[pair[0] as usize..pair[1] as usize].to_vec())
        .collect();
    List {
        lanes,
        tiles: all[items..].to_vec(),
    }
}

#[test]
fn a_short_sequence_is_one_item() {
    let list = list(&PLANNER, &[(1, 100)]);
    assert_eq!(
        list.lanes,
        [vec![vec![0, 0, 4, 99, 0, 100, 0, NONE, 0, 1, 0, 0]]]
    );
    assert!(list.tiles.is_empty());
}

#[test]
fn lanes_are_even_and_cover_every_key_once() {
    for rows in [
        &[(1, 100_000)][..],
        &[(1, 5000), (1, 1), (3, 700), (1, 129), (1, 64)],
        &[(1, 1500); 64],
    ] {
        let list = list(&PLANNER, rows);
        assert!(list.lanes.len() <= PLANNER.lanes_max as usize);
        let units = |item: &Vec<u32>| item[5].div_ceil(UNIT) - item[4] / UNIT;
        let lengths: Vec<u32> = list
            .lanes
            .iter()
            .map(|lane| lane.iter().map(units).sum())
            .collect();
        let (last, others) = lengths.split_last().unwrap();
        assert!(
            others.iter().all(|length| length == &lengths[0]) && *last > 0 && last <= &lengths[0]
        );
        for (index, (_, context)) in rows.iter().enumerate() {
            let items: Vec<_> = list
                .lanes
                .iter()
                .flatten()
                .filter(|item| item[6] == 1000 * index as u32)
                .collect();
            assert_eq!((items[0][4], items[items.len() - 1][5]), (0, *context));
            assert!(items.windows(2).all(|pair| pair[0][5] == pair[1][4]));
            for (part, item) in items.iter().enumerate() {
                let is_whole = items.len() == 1;
                let slot = if is_whole {
                    NONE
                } else {
                    item[8] + part as u32
                };
                assert_eq!((item[7], item[9]), (slot, items.len() as u32));
            }
            assert!(items.len() <= SPLITS_MAX as usize + 1);
        }
    }
}

#[test]
fn slots_and_counters_stay_within_what_is_allocated() {
    let rows: Vec<(u32, u32)> = (0..200).map(|index| (1, 1 + index * 37 % 4000)).collect();
    let list = list(&PLANNER, &rows);
    let parts: Vec<_> = list
        .lanes
        .iter()
        .flatten()
        .filter(|item| item[7] != NONE)
        .collect();
    assert!(
        parts
            .iter()
            .enumerate()
            .all(|(slot, item)| item[7] == slot as u32)
    );
    assert!(parts.len() <= 2 * PLANNER.lanes_max as usize);
    assert!(parts.iter().all(|item| item[10] < PLANNER.lanes_max));
}

#[test]
fn without_splits_a_sequence_is_a_lane_and_the_longest_comes_first() {
    let list = list(
        &Planner {
            splits: false,
            ..PLANNER
        },
        &[(1, 10), (1, 9000), (1, 300)],
    );
    let contexts: Vec<u32> = list.lanes.iter().map(|lane| lane[0][5]).collect();
    assert_eq!(contexts, [9000, 300, 10]);
    assert!(
        list.lanes
            .iter()
            .all(|lane| lane.len() == 1 && lane[0][7] == NONE)
    );
}

#[test]
fn many_rows_are_tiles_that_see_their_windows() {
    let planner = Planner {
        window: Some(Window::Last(100)),
        ..PLANNER
    };
    let list = list(&planner, &[(1, 500), (70, 1000)]);
    // 280 packed rows: the last tile has the fewest.
    let tiles: Vec<&[u32]> = list.tiles.iter().map(|item| &item[..6]).collect();
    let expected: [&[u32]; 3] = [
        &[1, 0, 128, 930, 831, 962],
        &[1, 128, 128, 930, 863, 994],
        &[1, 256, 24, 930, 895, 1000],
    ];
    assert_eq!(tiles, expected);
    assert_eq!(list.lanes[0][0][4..6], [400, 500]);
}
