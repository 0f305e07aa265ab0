//! Generates the tables of docs/formats.md that say what runs on which backend, from the notes that the tests write
//! (`tests/support/mod.rs`).
//!
//! Run `cargo test --features cuda`, then `cargo run --example support` to write the tables. With `--check` it fails if
//! the page differs.

use anyhow::{Context as _, Result, bail, ensure};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// A generated table: its name in notes and page, the heading of its rows, and its columns with their headings.
struct Table {
    name: &'static str,
    rows: &'static str,
    columns: &'static [(&'static str, &'static str)],
}

const TABLES: [Table; 3] = [
    Table {
        name: "families",
        rows: "Family (test checkpoint)",
        columns: &[
            ("safetensors", "safetensors"),
            ("gguf", "GGUF"),
            ("q8", "`--quantization q8`"),
            ("q4", "`--quantization q4`"),
            ("kv-q8", "`--kv-cache-dtype q8`"),
        ],
    },
    Table {
        name: "formats",
        rows: "Weights on the device",
        columns: &[
            ("matmul", "matrix products"),
            ("matmul_experts", "products of experts"),
        ],
    },
    Table {
        name: "published",
        rows: "Test checkpoint",
        columns: &[("model", "whole model")],
    },
];

/// The page that holds the tables.
const PAGE: &str = "docs/formats.md";

fn main() -> Result<()> {
    let check = std::env::args()
        .nth(1)
        .is_some_and(|argument| argument == "--check");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    // The folder that cargo gives to tests and benchmarks for temporary files.
    let notes = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| root.join("target"), Into::into)
        .join("tmp/support");
    let page = root.join(PAGE);
    let mut text = fs::read_to_string(&page)?;
    for table in TABLES {
        let (begin, end) = (
            format!("<!-- {}: begin -->\n", table.name),
            format!("<!-- {}: end -->", table.name),
        );
        let start = text
            .find(&begin)
            .with_context(|| format!("{PAGE} has no {begin}"))?
            + begin.len();
        let length = text[start..]
            .find(&end)
            .with_context(|| format!("{PAGE} has no {end}"))?;
        let made = table.markdown(&notes.join(table.name))?;
        if check && text[start..start + length] != made {
            bail!(
                "{PAGE}: the table of {} is stale; according to the tests it is:\n{made}",
                table.name
            );
        }
        text.replace_range(start..start + length, &made);
    }
    if !check {
        fs::write(page, text)?;
    }
    Ok(())
}

impl Table {
    fn markdown(&self, notes: &Path) -> Result<String> {
        let cells = self.cells(notes)?;
        ensure!(
            !cells.is_empty(),
            "no notes in {}: run `cargo test` first",
            notes.display()
        );
        let headings: Vec<&str> = self.columns.iter().map(|(_, heading)| *heading).collect();
        let mut text = format!("| {} | {} |\n", self.rows, headings.join(" | "));
        text += &format!("|{}\n", "---|".repeat(1 + headings.len()));
        for (row, cells) in cells {
            let cell = |(column, _): &(&str, _)| {
                cells
                    .get(*column)
                    .map_or("–".into(), |backends| backends.join(", "))
            };
            let cells: Vec<String> = self.columns.iter().map(cell).collect();
            text += &format!("| {row} | {} |\n", cells.join(" | "));
        }
        Ok(text)
    }

    /// Backends by row and column, in order.
    fn cells(&self, notes: &Path) -> Result<BTreeMap<String, BTreeMap<String, Vec<String>>>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(notes)
            .with_context(|| format!("{}: run `cargo test` first", notes.display()))?
        {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        let mut cells: BTreeMap<String, BTreeMap<String, Vec<String>>> = BTreeMap::new();
        for name in names {
            let [row, column, backend] = name.split('.').collect::<Vec<_>>()[..] else {
                bail!("{name}: not a note");
            };
            cells
                .entry(row.into())
                .or_default()
                .entry(column.into())
                .or_default()
                .push(backend.into());
        }
        Ok(cells)
    }
}
