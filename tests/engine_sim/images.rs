//! Requests about images, of which more come than there are rows for: the fake device has the content of a row in place
//! of the token that stands for it, so a wrong, stale or foreign row is a wrong token.

use crate::faults::faulty;
use crate::world::{Case, Random, case};
use crate::{SEEDS_EACH, for_seeds, pass, pass_with_preemptions_and_hits};
use folio::engine::request::{Request, Tile};
use folio::plan::{Embed, GatherRows, Plan, Pool, RowId, Rows, Step, Storage, Tail, WeightFormat};
use std::sync::Arc;

const SEEDS: u64 = 2_000;
/// Patches that become a row: so many that few tiles are computed before a step.
pub(crate) const RUN: u32 = 128;
/// Rows of a tile at most.
const ROWS_MAX: u32 = 5;
/// Patches of a tile at most.
pub(crate) const TILE: u32 = RUN * ROWS_MAX;
/// Numbers of a patch, and of a row.
const COLUMNS: u32 = 8;

/// A tower without arithmetic that has room for so many patches.
pub(crate) fn tower(patches: u32) -> Plan {
    let mut plan = Plan {
        vocab: patches,
        positions_max: TILE,
        ..Plan::default()
    };
    let table = plan.weight("patches", patches, COLUMNS, WeightFormat::F32);
    let x = plan.buffer("x", Rows::Tokens, COLUMNS, Storage::F32);
    let merged = plan.buffer("merged", Rows::Samples, RUN * COLUMNS, Storage::F32);
    plan.body.push(Step::Embed(Embed {
        table,
        id: RowId::Token,
        scale: 1.0,
        accumulate: false,
        out: x,
    }));
    let tail = vec![
        Step::GatherRows(GatherRows { x, out: merged }),
        Step::Pool(Pool { x: merged }),
    ];
    plan.tails.push((Tail::Pool, tail));
    plan
}

/// Gives a plan a pool of so many rows of images.
pub(crate) fn add_rows(plan: &mut Plan, rows: u32) {
    let x = plan.buffer("x", Rows::Tokens, COLUMNS, Storage::F32);
    let tables = [
        ("embedding", plan.vocab, RowId::Token),
        ("image_rows", rows, RowId::Image),
    ];
    for (name, rows, id) in tables {
        let table = plan.weight(name, rows, COLUMNS, WeightFormat::F32);
        plan.body.push(Step::Embed(Embed {
            table,
            id,
            scale: 1.0,
            accumulate: false,
            out: x,
        }));
    }
}

/// What a row of an image has: no token.
fn content(image: u32, row: u32) -> u32 {
    0x4000_0000 | image << 8 | row
}

/// A tile of so many rows of an image, from a token on, with another token before each `run` of them.
fn tile(image: u32, start: u32, rows: u32, run: u32) -> Tile {
    let patch = |patch: u32| {
        let bits = if patch.is_multiple_of(RUN) {
            content(image, patch / RUN)
        } else {
            0
        };
        [f32::from_bits(bits); COLUMNS as usize]
    };
    // An image cut to another number of rows is another one: where its rows end is part of what blocks are found by.
    let mut digest = [image as u8; 32];
    [digest[0], digest[1]] = [rows as u8, run as u8];
    Tile {
        start,
        rows,
        run,
        digest,
        patches: (0..rows * RUN).flat_map(patch).collect(),
        positions: (0..rows * RUN).collect(),
        across: RUN,
    }
}

/// The tokens of a prompt as the device sees them: those that stand for images are the rows of these.
pub(crate) fn seen_by_device(request: &Request) -> Vec<u32> {
    let mut tokens = request.prompt.to_vec();
    for tile in request.tiles.iter() {
        let rows = tile.patches.chunks((RUN * COLUMNS) as usize);
        for (row, index) in rows.zip(0..) {
            tokens[tile.position(index) as usize] = row[0].to_bits();
        }
    }
    tokens
}

/// Tiles of a prompt of so many tokens: few images at few places, so that prompts have the same ones.
fn tiles(random: &mut Random, prompt_len: u32) -> Arc<[Tile]> {
    let mut tiles: Vec<Tile> = Vec::new();
    for start in [1, 7, 12, 20] {
        let rows = random.within(1, ROWS_MAX);
        // Runs of one row, with a token between, reach as far as the longest tile.
        let run = if rows <= ROWS_MAX.div_ceil(2) && random.once_in(2) {
            1
        } else {
            rows
        };
        let tile = tile(random.below(4), start, rows, run);
        if tile.position(rows - 1) < prompt_len && random.once_in(2) {
            tiles.push(tile);
        }
    }
    tiles.into()
}

/// The case with images in most of its requests.
fn with_images(seed: u64, mut case: Case) -> Case {
    let mut random = Random(!seed);
    case.reads_images = true;
    if case.draft.take().is_some() {
        case.config.speculation = None;
    }
    let mut most = 1;
    for arrival in &mut case.arrivals {
        let prompt_len = arrival.request.prompt.len() as u32;
        arrival.request.tiles = tiles(&mut random, prompt_len);
        let rows: u32 = arrival.request.tiles.iter().map(|tile| tile.rows).sum();
        most = most.max(rows);
    }
    case.config.max_image_rows = most + random.below(8);
    case
}

#[test]
fn every_seed_gives_the_oracles_tokens() {
    pass_with_preemptions_and_hits(SEEDS, |seed| with_images(seed, case(seed)));
}

#[test]
fn rows_are_computed_anew_after_a_device_is_lost() {
    let work = |seed, (): &mut ()| drop(pass(seed, &with_images(seed, faulty(seed, case(seed)))));
    for_seeds(SEEDS_EACH, work, |()| {});
}

#[test]
fn one_seed_with_images() {
    let seed = crate::variable("FOLIO_SIM_SEED").unwrap_or(0);
    pass(seed, &with_images(seed, case(seed)));
}
