//! Time to tokenize a megabyte of text with the demo model's tokenizer.
//!
//! Prints the best of five for several kinds of text, with the limit of one second, and fails above it.
//! `cargo bench --bench tokenizing`.

use folio::model::demo;
use folio::text::Tokenizer;
use std::time::{Duration, Instant};

const BYTES: usize = 1 << 20;
const LIMIT: Duration = Duration::from_secs(1);

fn main() {
    let tokenizer = Tokenizer::from_json(demo::TOKENIZER_JSON).expect("the demo's tokenizer");
    let prose = "It was a dark night; 12 foxes slept in 3 dens.\n\n\"Who is there?\" asked the oldest one. ";
    let texts = [
        ("prose", prose),
        ("digits", "7"),
        ("sums", "1+"),
        ("one word", "a"),
        ("spaces", " "),
        ("kanji", "漢字"),
    ];
    let mut worst = Duration::ZERO;
    for (name, unit) in texts {
        let text = unit.repeat(BYTES / unit.len());
        let time = |_| {
            let start = Instant::now();
            let ids = tokenizer.encode(&text, false).expect("text encodes");
            (start.elapsed(), ids.len())
        };
        let (best, ids) = (0..5).map(time).min().expect("there are rounds");
        println!("{name:8} {BYTES} bytes, {ids} ids: {best:?} (limit {LIMIT:?})");
        worst = worst.max(best);
    }
    assert!(
        cfg!(debug_assertions) || worst <= LIMIT,
        "tokenizing stays within its limit"
    );
}
