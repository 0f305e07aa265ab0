//! Whether it is cheaper to move a block than to compute it again: both times are measured.

use std::time::Duration;

/// Weight of a new measurement in the running averages.
const NEW_SHARE: f64 = 0.25;

/// Measured times; unknown ones favor moving, so that they become known.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rates {
    seconds_per_byte: Option<f64>,
    /// Of a file that is read.
    seconds_per_file_byte: Option<f64>,
    seconds_per_token: Option<f64>,
}

impl Rates {
    /// Given times: of moving a byte, in either way, and of computing a token.
    pub fn given(byte: Duration, token: Duration) -> Self {
        let [byte, token] = [byte, token].map(|time| Some(time.as_secs_f64()));
        Self {
            seconds_per_byte: byte,
            seconds_per_file_byte: byte,
            seconds_per_token: token,
        }
    }

    /// Adds a measured upload.
    pub fn note_upload(&mut self, bytes: u64, took: Duration) {
        note(&mut self.seconds_per_byte, bytes, took);
    }

    /// Adds a file that was read.
    pub fn note_file(&mut self, bytes: u64, took: Duration) {
        note(&mut self.seconds_per_file_byte, bytes, took);
    }

    /// Adds a measured step that computed this many prompt tokens.
    pub fn note_prefill(&mut self, tokens: u64, took: Duration) {
        note(&mut self.seconds_per_token, tokens, took);
    }

    /// Whether uploading `bytes` is predicted to take less time than computing `tokens` tokens.
    pub fn favor_moving(&self, bytes: u64, tokens: u64) -> bool {
        is_cheaper(self.seconds_per_byte, bytes, self.seconds_per_token, tokens)
    }

    /// Whether reading `bytes` from a file and uploading them is predicted to take less time than computing `tokens`
    /// tokens.
    pub fn favor_reading(&self, bytes: u64, tokens: u64) -> bool {
        let byte = self
            .seconds_per_byte
            .zip(self.seconds_per_file_byte)
            .map(|(upload, file)| upload + file);
        is_cheaper(byte, bytes, self.seconds_per_token, tokens)
    }
}

fn is_cheaper(per_byte: Option<f64>, bytes: u64, per_token: Option<f64>, tokens: u64) -> bool {
    let (Some(byte), Some(token)) = (per_byte, per_token) else {
        return true;
    };
    byte * bytes as f64 <= token * tokens as f64
}

fn note(average: &mut Option<f64>, count: u64, took: Duration) {
    if count == 0 {
        return;
    }
    let new = took.as_secs_f64() / count as f64;
    *average = Some(average.map_or(new, |old| old + (new - old) * NEW_SHARE));
}

#[cfg(test)]
mod tests;
