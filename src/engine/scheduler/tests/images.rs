//! Tests of which images are computed before a step, and of how long their rows are kept.

use super::*;
use crate::engine::request::Tile;

/// A scheduler with room for eight rows of images, ten patches of which are computed before a step.
fn with_images() -> Scheduler {
    Scheduler::new(Limits {
        image_rows: 8,
        patches_max: 10,
        ..limits(None, 40, true)
    })
}

fn tile(name: u8, start: u32, patches: u32) -> Tile {
    Tile {
        start,
        rows: 2,
        run: 2,
        digest: [name; 32],
        patches: Arc::default(),
        positions: vec![0; patches as usize].into(),
        across: 1,
    }
}

/// Queues a prompt of ten tokens with these tiles.
fn ask(scheduler: &mut Scheduler, stream: u64, tiles: &[Tile]) -> SequenceId {
    let request = Request {
        prompt: (0..10).collect(),
        tiles: tiles.into(),
        ..Request::default()
    };
    scheduler.add(Arc::new(request), &[StreamId(stream)], 0, false);
    scheduler.queues.by_stream[&StreamId(stream)]
}

/// Numbers of tokens of a step's rows, and the names of the images that are computed before it.
fn next(scheduler: &mut Scheduler) -> (Vec<u32>, Vec<u8>) {
    let batch = scheduler.schedule(64).expect("some sequence can continue");
    commit(scheduler, &batch);
    let rows = batch.rows.iter().map(|row| row.count);
    let images = batch.tiles.iter().map(|load| load.tile.digest[0]);
    (rows.collect(), images.collect())
}

#[test]
fn a_chunk_ends_before_an_image_that_the_step_has_no_time_for() {
    let mut scheduler = with_images();
    let tiles = [tile(1, 2, 4), tile(2, 4, 4), tile(3, 7, 30)];
    let id = ask(&mut scheduler, 0, &tiles);
    assert_eq!(next(&mut scheduler), (vec![7], vec![1, 2]));
    assert_eq!(scheduler.queues.sequences[id].tiles_in_use().count(), 3);
    // However large it is, an image is computed.
    assert_eq!(next(&mut scheduler), (vec![3], vec![3]));
    assert_eq!(next(&mut scheduler), (vec![1], vec![]));
    assert_eq!(
        scheduler.queues.sequences[id].tiles_in_use().count(),
        0,
        "their tokens are computed"
    );
}

#[test]
fn images_that_are_there_cost_no_time_and_those_without_room_wait() {
    let mut scheduler = with_images();
    ask(&mut scheduler, 0, &[tile(1, 2, 8), tile(2, 5, 8)]);
    let waiting = ask(
        &mut scheduler,
        1,
        &[tile(3, 0, 8), tile(4, 3, 8), tile(5, 6, 8)],
    );
    assert_eq!(next(&mut scheduler), (vec![5], vec![1]));
    assert_eq!(
        scheduler.phase(StreamId(1)),
        Some(Phase::Queued),
        "two rows are missing"
    );
    // The first image's tokens are computed, so that its rows are free for the second prompt; but not its patches now.
    assert_eq!(next(&mut scheduler), (vec![5], vec![2]));
    assert_eq!(next(&mut scheduler), (vec![1, 3], vec![3]));
    assert_eq!(
        scheduler.queues.sequences[waiting].tiles_in_use().count(),
        3
    );
    scheduler.abort(StreamId(0));
    scheduler.abort(StreamId(1));
    // Of the first two images, the second was left last, and is still there.
    ask(&mut scheduler, 2, &[tile(2, 1, 8), tile(3, 5, 8)]);
    assert_eq!(next(&mut scheduler), (vec![10], vec![]));
}
