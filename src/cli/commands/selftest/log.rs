//! The file of `--log`: one JSON object a line, flushed when it is written, so that a run that is cut off leaves what
//! it found, and the next one goes on after it.
//!
//! ```json
//! {"begins": 17, "check": "matmul/BF16 · q4"}
//! {"ends": 17, "check": "matmul/BF16 · q4", "cases": 24, "values": 51200, "worst": 0.31, "misses": []}
//! ```
//!
//! `worst` is the largest deviation as a multiple of its tolerance. A check that began and did not end took the process
//! with it.

use anyhow::{Context as _, Result, ensure};
use folio::selftest::Told;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

pub(super) struct Log {
    path: PathBuf,
    file: Mutex<File>,
    /// Numbers of the checks that earlier runs began.
    begun: BTreeSet<usize>,
    /// Names of those that did not end.
    cut_off: Vec<String>,
    /// The first error of writing.
    fault: Mutex<Option<std::io::Error>>,
}

impl Log {
    /// Reads what earlier runs wrote. A line that is cut off is ignored.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let context = || format!("--log {}", path.display());
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .with_context(context)?;
        let text = std::fs::read_to_string(path).with_context(context)?;
        let mut begun = BTreeMap::new();
        let mut ended = BTreeSet::new();
        for line in text
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        {
            let name = line["check"].as_str().unwrap_or_default().to_owned();
            if let Some(number) = line["begins"].as_u64() {
                begun.insert(number as usize, name);
            } else if let Some(number) = line["ends"].as_u64() {
                ended.insert(number as usize);
            }
        }
        let cut_off = begun
            .iter()
            .filter(|(number, _)| !ended.contains(number))
            .map(|(_, name)| name.clone())
            .collect();
        let begun = begun.into_keys().collect();
        Ok(Self {
            path: path.to_owned(),
            file: Mutex::new(file),
            begun,
            cut_off,
            fault: Mutex::new(None),
        })
    }

    /// Numbers of the checks that earlier runs began.
    pub(super) fn begun(&self) -> BTreeSet<usize> {
        self.begun.clone()
    }

    /// Names of the checks during which earlier runs ended.
    pub(super) fn cut_off(&self) -> &[String] {
        &self.cut_off
    }

    pub(super) fn write(&self, told: &Told<'_>) {
        let line = match told {
            Told::Begins { number, name } => json!({"begins": number, "check": name}),
            Told::Ends { number, row } => json!({
                "ends": number, "check": row.name, "cases": row.cases, "values": row.compared.0, "worst": row.worst,
                "misses": row.misses,
            }),
            Told::Progress { .. } => return,
        };
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        // One write, so that a line is there as a whole or not at all.
        if let Err(error) = file.write_all(format!("{line}\n").as_bytes()) {
            self.fault
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .get_or_insert(error);
        }
    }

    /// Whether all was written.
    pub(super) fn check_written(&self) -> Result<()> {
        let fault = self
            .fault
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        ensure!(
            fault.is_none(),
            "--log {}: {}",
            self.path.display(),
            fault.map_or(String::new(), |it| it.to_string())
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests;
