//! Records what ran correctly. The tables in docs/formats.md are generated from these records (`examples/support.rs`).

use std::fs;
use std::path::Path;

/// Records that `row` (a family, or a weight format) with `column` (a source, or a step) is correct on `backend`. The
/// reference needs no record: it defines what is correct.
pub(crate) fn ran(table: &str, row: &str, column: &str, backend: &str) {
    if backend == "reference" {
        return;
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("support")
        .join(table);
    let note = folder.join(format!("{row}.{column}.{backend}"));
    fs::create_dir_all(folder)
        .and_then(|()| fs::write(note, ""))
        .expect("the target folder can be written");
}
