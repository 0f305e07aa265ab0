//! Notes of what ran and was right, from which the tables in docs/formats.md are generated (`examples/support.rs`).

use std::fs;
use std::path::Path;

/// `row` (a family, or a weight format) as `column` (a source, or a step) is right on `backend`.
pub(crate) fn ran(table: &str, row: &str, column: &str, backend: &str) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("support").join(table);
    let note = folder.join(format!("{row}.{column}.{backend}"));
    fs::create_dir_all(folder).and_then(|()| fs::write(note, "")).expect("the target folder can be written");
}
