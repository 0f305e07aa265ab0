//! The report of `bench`: a table, or one JSON object with the same rows.

use super::peaks::Measured;
use crate::cli::terminal::output;
use anyhow::Result;
use folio::backend::Peaks;
use serde_json::{Map, Value, json};

/// A share above this is a measurement error: apart from noise, no result can exceed the peak.
const SHARE_MAX: f64 = 1.05;

/// How many times peaks are measured again before a row above them counts as an error.
const ATTEMPTS: u32 = 5;

/// The peak that a row is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bound {
    Copy,
    Read,
    Arithmetic,
}

/// One line of the table; a field that a scenario does not have is `None`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Row {
    pub(crate) scenario: &'static str,
    /// Name of the model, or the kernel and its shape.
    pub(crate) shape: String,
    /// Number of sequences, or rows of a kernel.
    pub(crate) batch: u32,
    /// Number of tokens before the measured ones.
    pub(crate) context: Option<u32>,
    pub(crate) tokens_per_s: Option<f64>,
    pub(crate) gbps: Option<f64>,
    pub(crate) gflops: Option<f64>,
    /// The measured peak that bounds this row, if there is one.
    pub(crate) bound: Option<Bound>,
    /// Kernels that were dispatched, divided by the tokens that they generated.
    pub(crate) dispatches_per_token: Option<f64>,
    /// Median time of a kernel, or between two tokens, in milliseconds.
    pub(crate) p50_ms: Option<f64>,
    pub(crate) p99_ms: Option<f64>,
    /// How far apart the rates of several rounds are: the highest less the lowest, as a share of the median.
    pub(crate) spread: Option<f64>,
}

impl Row {
    fn share_of_peak(&self, peaks: &Peaks) -> Option<f64> {
        match self.bound? {
            Bound::Copy => self.gbps.map(|gbps| gbps / peaks.copy_gbps),
            Bound::Read => self.gbps.map(|gbps| gbps / peaks.read_gbps),
            Bound::Arithmetic => self.gflops.map(|gflops| gflops / peaks.fma_gflops),
        }
    }
}

/// All results.
pub(crate) struct Report {
    name: String,
    pub(crate) measured: Measured,
    rows: Vec<Row>,
    /// Tokens per second that the matrix-vector products alone would allow; set once `steps` has measured them.
    pub(crate) matvec_tokens_per_s: Option<f64>,
    /// Numbers outside the table: counters of `serve`, host times.
    extra: Map<String, Value>,
    measure_peaks: Box<dyn Fn() -> Result<Measured>>,
    /// Whether each row is printed as soon as it is measured.
    streams: bool,
}

impl Report {
    /// Measures the peaks with `measure_peaks`, here and whenever a row exceeds them.
    pub(crate) fn new(
        name: String,
        measure_peaks: Box<dyn Fn() -> Result<Measured>>,
    ) -> Result<Self> {
        let measured = measure_peaks()?;
        let (rows, extra) = (Vec::new(), Map::new());
        Ok(Self {
            name,
            measured,
            rows,
            matvec_tokens_per_s: None,
            extra,
            measure_peaks,
            streams: false,
        })
    }

    /// Prints the peaks now, and each row as soon as it is measured: one JSON object a line.
    pub(crate) fn streaming(self) -> Result<Self> {
        output::result(self.head())?;
        Ok(Self {
            streams: true,
            ..self
        })
    }

    /// Adds a row. If it exceeds the peaks, they are measured again, under the same load of the machine as the row:
    /// other load can only lower a measured peak.
    pub(crate) fn push(&mut self, row: Row) -> Result<()> {
        for _ in 0..ATTEMPTS {
            if !self.is_impossible(&row) {
                break;
            }
            let again = (self.measure_peaks)()?.peaks;
            self.raise(&again);
        }
        if self.streams {
            output::result(row_json(&row, &self.measured.peaks))?;
        }
        self.rows.push(row);
        Ok(())
    }

    pub(crate) fn set(&mut self, key: &str, value: Value) {
        self.extra.insert(key.to_owned(), value);
    }

    /// Keeps the higher value of each peak.
    fn raise(&mut self, again: &Peaks) {
        let peaks = &mut self.measured.peaks;
        peaks.copy_gbps = peaks.copy_gbps.max(again.copy_gbps);
        peaks.read_gbps = peaks.read_gbps.max(again.read_gbps);
        peaks.fma_gflops = peaks.fma_gflops.max(again.fma_gflops);
    }

    fn is_impossible(&self, row: &Row) -> bool {
        row.share_of_peak(&self.measured.peaks)
            .is_some_and(|share| share > SHARE_MAX)
    }

    /// The first row that exceeds its peak by more than noise.
    pub(crate) fn impossible(&self) -> Option<String> {
        let row = self.rows.iter().find(|row| self.is_impossible(row))?;
        let share = row.share_of_peak(&self.measured.peaks).unwrap_or(0.0);
        Some(format!(
            "{} {} reaches {share:.2} of the peak",
            row.scenario, row.shape
        ))
    }

    /// Device, model and peaks.
    fn head(&self) -> Value {
        let peaks = &self.measured.peaks;
        json!({
            "adapter": self.measured.adapter,
            "tier": self.measured.tier,
            "model": self.name,
            "peaks": {
                "copy_gbps": rounded(peaks.copy_gbps),
                "read_gbps": rounded(peaks.read_gbps),
                "fma_gflops": rounded(peaks.fma_gflops),
            },
        })
    }

    /// What is beside the rows.
    pub(crate) fn extra(&self) -> Value {
        self.extra.clone().into()
    }

    pub(crate) fn as_json(&self) -> Value {
        let mut object = self.head();
        let peaks = &self.measured.peaks;
        object["rows"] = self.rows.iter().map(|row| row_json(row, peaks)).collect();
        if let Value::Object(fields) = &mut object {
            fields.extend(self.extra.clone());
        }
        object
    }

    pub(crate) fn as_text(&self) -> String {
        let peaks = &self.measured.peaks;
        let mut text = format!(
            "{}, {}: copy {:.1} GB/s, read {:.1} GB/s, multiply-add {:.0} GFLOP/s\n{}\n\n",
            self.measured.adapter,
            self.measured.tier,
            peaks.copy_gbps,
            peaks.read_gbps,
            peaks.fma_gflops,
            self.name
        );
        let head = [
            "scenario",
            "shape",
            "batch",
            "context",
            "tokens/s",
            "GB/s",
            "GFLOP/s",
            "of peak",
            "dispatches/token",
            "p50 ms",
            "p99 ms",
            "spread",
        ];
        let mut lines = vec![head.map(str::to_owned)];
        lines.extend(self.rows.iter().map(|row| row_text(row, peaks)));
        let widths: Vec<usize> = (0..head.len())
            .map(|column| {
                lines
                    .iter()
                    .map(|line| line[column].chars().count())
                    .max()
                    .unwrap_or_default()
            })
            .collect();
        for line in &lines {
            let cells = line.iter().zip(&widths).enumerate();
            let padded = cells.map(|(index, (cell, &width))| match index {
                0 | 1 => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            });
            text += padded.collect::<Vec<_>>().join("  ").trim_end();
            text.push('\n');
        }
        for (key, value) in &self.extra {
            text += &format!("{key}: {value}\n");
        }
        text
    }
}

/// Rounds to four significant digits; more would be noise.
pub(crate) fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let digits = 10_f64.powi(3 - value.abs().log10().floor() as i32);
    (value * digits).round() / digits
}

fn row_json(row: &Row, peaks: &Peaks) -> Value {
    json!({
        "scenario": row.scenario,
        "shape": row.shape,
        "batch": row.batch,
        "context": row.context,
        "tokens_per_s": number(row.tokens_per_s),
        "gbps": number(row.gbps),
        "gflops": number(row.gflops),
        "share_of_peak": number(row.share_of_peak(peaks)),
        "dispatches_per_token": number(row.dispatches_per_token),
        "p50_ms": number(row.p50_ms),
        "p99_ms": number(row.p99_ms),
        "spread": number(row.spread),
    })
}

fn number(value: Option<f64>) -> Option<f64> {
    value.map(rounded)
}

fn row_text(row: &Row, peaks: &Peaks) -> [String; 12] {
    let number = |value: Option<f64>| {
        value.map_or_else(|| "-".to_owned(), |value| rounded(value).to_string())
    };
    [
        row.scenario.to_owned(),
        row.shape.clone(),
        row.batch.to_string(),
        row.context
            .map_or_else(|| "-".to_owned(), |context| context.to_string()),
        number(row.tokens_per_s),
        number(row.gbps),
        number(row.gflops),
        percent(row.share_of_peak(peaks)),
        number(row.dispatches_per_token),
        number(row.p50_ms),
        number(row.p99_ms),
        percent(row.spread),
    ]
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |share| format!("{:.1} %", 100.0 * share))
}

/// The value below which `share` of the sorted values lie.
pub(crate) fn percentile(values: &mut [f64], share: f64) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let last = values.len().checked_sub(1)?;
    Some(values[(last as f64 * share).round() as usize])
}

#[cfg(test)]
mod tests;
