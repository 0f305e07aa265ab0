//! What `bench` prints: a table, or one JSON object with the same rows.

use super::peaks::Measured;
use serde_json::{Map, Value, json};

/// Shares above this are errors of measurement: nothing is faster than its own peak, but for noise.
const SHARE_MAX: f64 = 1.05;

/// One line of the table; a field that a scenario does not have is `None`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Row {
    pub(crate) scenario: &'static str,
    /// A model's name, or the kernel and its shape.
    pub(crate) shape: String,
    /// Sequences, or rows of a kernel.
    pub(crate) batch: u32,
    /// Tokens before the measured ones.
    pub(crate) context: Option<u32>,
    pub(crate) tokens_per_s: Option<f64>,
    pub(crate) gbps: Option<f64>,
    pub(crate) gflops: Option<f64>,
    /// Of the peak that bounds this row: read or copy bandwidth, or arithmetic.
    pub(crate) share_of_peak: Option<f64>,
    /// Of a kernel, or between two tokens.
    pub(crate) p50_ms: Option<f64>,
    pub(crate) p99_ms: Option<f64>,
}

/// All that was measured.
pub(crate) struct Report {
    name: String,
    pub(crate) measured: Measured,
    rows: Vec<Row>,
    /// Tokens a second that the products with a vector alone would allow, once `steps` has measured them.
    pub(crate) matvec_tokens_per_s: Option<f64>,
    /// Numbers that fit no row: counters of `serve`, times of the host.
    extra: Map<String, Value>,
}

impl Report {
    pub(crate) fn new(name: String, measured: Measured) -> Self {
        Self { name, measured, rows: Vec::new(), matvec_tokens_per_s: None, extra: Map::new() }
    }

    pub(crate) fn push(&mut self, row: Row) {
        self.rows.push(row);
    }

    pub(crate) fn set(&mut self, key: &str, value: Value) {
        self.extra.insert(key.to_owned(), value);
    }

    /// The first row that claims more than the device can do.
    pub(crate) fn impossible(&self) -> Option<String> {
        let beyond = |row: &&Row| row.share_of_peak.is_some_and(|share| share > SHARE_MAX);
        self.rows.iter().find(beyond).map(|row| {
            format!("{} {} reaches {:.2} of the peak", row.scenario, row.shape, row.share_of_peak.unwrap_or_default())
        })
    }

    pub(crate) fn as_json(&self) -> Value {
        let peaks = &self.measured.peaks;
        let mut object = json!({
            "adapter": self.measured.adapter,
            "tier": self.measured.tier,
            "model": self.name,
            "peaks": {
                "copy_gbps": rounded(peaks.copy_gbps),
                "read_gbps": rounded(peaks.read_gbps),
                "fma_gflops": rounded(peaks.fma_gflops),
            },
            "rows": self.rows.iter().map(row_json).collect::<Vec<_>>(),
        });
        if let Value::Object(fields) = &mut object {
            fields.extend(self.extra.clone());
        }
        object
    }

    pub(crate) fn as_text(&self) -> String {
        let peaks = &self.measured.peaks;
        let mut text = format!(
            "{}, {}: copy {:.1} GB/s, read {:.1} GB/s, f32 FMA {:.0} GFLOP/s\n{}\n\n",
            self.measured.adapter, self.measured.tier, peaks.copy_gbps, peaks.read_gbps, peaks.fma_gflops, self.name
        );
        let head =
            ["scenario", "shape", "batch", "context", "tokens/s", "GB/s", "GFLOP/s", "of peak", "p50 ms", "p99 ms"];
        let mut lines = vec![head.map(str::to_owned)];
        lines.extend(self.rows.iter().map(row_text));
        let widths: Vec<usize> = (0..head.len())
            .map(|column| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or_default())
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

/// Four significant digits: more would be noise.
pub(crate) fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let digits = 10_f64.powi(3 - value.abs().log10().floor() as i32);
    (value * digits).round() / digits
}

fn row_json(row: &Row) -> Value {
    let number = |value: Option<f64>| value.map(rounded);
    json!({
        "scenario": row.scenario,
        "shape": row.shape,
        "batch": row.batch,
        "context": row.context,
        "tokens_per_s": number(row.tokens_per_s),
        "gbps": number(row.gbps),
        "gflops": number(row.gflops),
        "share_of_peak": number(row.share_of_peak),
        "p50_ms": number(row.p50_ms),
        "p99_ms": number(row.p99_ms),
    })
}

fn row_text(row: &Row) -> [String; 10] {
    let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| rounded(value).to_string());
    [
        row.scenario.to_owned(),
        row.shape.clone(),
        row.batch.to_string(),
        row.context.map_or_else(|| "-".to_owned(), |context| context.to_string()),
        number(row.tokens_per_s),
        number(row.gbps),
        number(row.gflops),
        row.share_of_peak.map_or_else(|| "-".to_owned(), |share| format!("{:.1} %", 100.0 * share)),
        number(row.p50_ms),
        number(row.p99_ms),
    ]
}

/// The value below which `share` of the sorted values lie.
pub(crate) fn percentile(values: &mut [f64], share: f64) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let last = values.len().checked_sub(1)?;
    Some(values[(last as f64 * share).round() as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_and_digits() {
        assert_eq!(percentile(&mut [], 0.5), None);
        assert_eq!(percentile(&mut [3.0, 1.0, 2.0], 0.5), Some(2.0));
        assert_eq!(percentile(&mut [3.0, 1.0, 2.0], 0.99), Some(3.0));
        assert_eq!((rounded(1234.56), rounded(0.012_345_6), rounded(0.0)), (1235.0, 0.012_35, 0.0));
    }

    #[test]
    fn a_share_beyond_the_peak_is_told() {
        let mut report = Report::new("toy".to_owned(), Measured::default());
        report.push(Row { scenario: "steps", share_of_peak: Some(1.04), ..Row::default() });
        assert_eq!(report.impossible(), None);
        report.push(Row { scenario: "steps", shape: "b".to_owned(), share_of_peak: Some(1.06), ..Row::default() });
        assert_eq!(report.impossible(), Some("steps b reaches 1.06 of the peak".to_owned()));
        assert_eq!(report.as_json()["rows"][1]["share_of_peak"], 1.06);
    }
}
