//! What a step costs by its number of rows, and how many drafts are worth their rows.
//!
//! Times are measured per number of rows, separately for steps that verify drafts: their sequences wait for the tokens
//! of the step before, so nothing hides the host's time. What was not measured is interpolated, or extrapolated with
//! [`ROW_COST`].

/// A row's share of a step's time, until it is measured.
const ROW_COST: f64 = 0.04;
/// A time is the median of the last so many steps: single steps take long when code or data are cold, or nothing when
/// their results came while the host was busy.
const TIMES_KEPT: usize = 5;
/// With fewer steps than this, the time is not known.
const TIMES_MIN: usize = 3;
/// Rows of a step up to which times are kept.
const ROWS_MAX: usize = 512;
/// After this many steps, times are measured anew: contexts grow, and other load comes and goes.
const STEPS_REMEMBERED: u32 = 1024;
/// A step with drafts has to promise this much more than one without, because times are noisy.
const GAIN_MIN: f64 = 1.1;

/// Measured times of steps.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pace {
    plain: Curve,
    verified: Curve,
    steps: u32,
    /// Whether the step before had drafts.
    after_drafts: bool,
}

/// Seconds by number of rows.
#[derive(Clone, Debug, Default)]
struct Curve(Vec<Times>);

/// Seconds of the last steps with one number of rows.
#[derive(Clone, Debug, Default)]
struct Times {
    last: [f64; TIMES_KEPT],
    count: usize,
}

impl Times {
    fn note(&mut self, seconds: f64) {
        self.last[self.count % TIMES_KEPT] = seconds;
        self.count += 1;
    }

    fn median(&self) -> Option<f64> {
        let mut known = self.last;
        let known = &mut known[..self.count.min(TIMES_KEPT)];
        known.sort_unstable_by(f64::total_cmp);
        (known.len() >= TIMES_MIN).then(|| known[known.len() / 2])
    }
}

/// What a step computes so far: its rows, and the tokens it is expected to yield.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Yield {
    pub(crate) rows: u32,
    pub(crate) drafts: u32,
    pub(crate) tokens: f64,
}

impl Yield {
    /// A step of `rows` rows that draw one token each.
    pub(crate) fn plain(rows: usize) -> Self {
        Self {
            rows: u32::try_from(rows).unwrap_or(u32::MAX),
            drafts: 0,
            tokens: rows as f64,
        }
    }

    /// The same with `count` drafts more, each of which is right with this probability if the one before it is.
    pub(crate) fn with(self, count: u32, rate: f64) -> Self {
        Self {
            rows: self.rows + count,
            drafts: self.drafts + count,
            tokens: self.tokens + accepted(count, rate),
        }
    }
}

/// Expected number of accepted drafts out of `count`.
pub(crate) fn accepted(count: u32, rate: f64) -> f64 {
    (1..=count)
        .map(|draft| rate.powi(i32::try_from(draft).unwrap_or(i32::MAX)))
        .sum()
}

impl Pace {
    /// Takes note of a step of single rows.
    pub(crate) fn note(&mut self, rows: u32, drafts: u32, seconds: f64) {
        self.steps += 1;
        if self.steps.is_multiple_of(STEPS_REMEMBERED) {
            (self.plain, self.verified) = Default::default();
        }
        // A step after one with drafts was not submitted ahead, so its time is not that of plain steps in a row.
        let is_first = std::mem::replace(&mut self.after_drafts, drafts > 0) && drafts == 0;
        if !is_first {
            let curve = if drafts > 0 {
                &mut self.verified
            } else {
                &mut self.plain
            };
            curve.note(rows as usize, seconds);
        }
    }

    /// Number of drafts, at most `most`, with which the step yields the most tokens per second.
    pub(crate) fn best(&self, step: Yield, most: u32, rate: f64) -> u32 {
        // Plain steps have to be known to be compared with.
        if self.plain.at(1).is_none() && !self.verified.0.is_empty() {
            return 0;
        }
        let alone = self.speed(&step) * if step.drafts == 0 { GAIN_MIN } else { 1.0 };
        let plans = (1..=most).map(|count| (count, self.speed(&step.with(count, rate))));
        let best = plans.fold(
            (0, alone),
            |best, plan| if plan.1 > best.1 { plan } else { best },
        );
        best.0
    }

    fn speed(&self, plan: &Yield) -> f64 {
        plan.tokens / self.seconds(*plan)
    }

    fn seconds(&self, step: Yield) -> f64 {
        let (rows, base) = (step.rows as usize, (step.rows - step.drafts) as usize);
        let plain = self.plain.at(base).unwrap_or(1.0);
        if step.drafts == 0 {
            return plain;
        }
        let first = Some((base, plain));
        self.verified.between(rows, first).unwrap_or(plain)
    }
}

impl Curve {
    fn note(&mut self, rows: usize, seconds: f64) {
        if rows > ROWS_MAX {
            return;
        }
        if self.0.len() <= rows {
            self.0.resize_with(rows + 1, Times::default);
        }
        self.0[rows].note(seconds);
    }

    /// Seconds of a step of `rows` rows, if any step was measured.
    fn at(&self, rows: usize) -> Option<f64> {
        self.between(rows, None)
    }

    /// The same; `known` is a time that is known from elsewhere, for a smaller number of rows.
    fn between(&self, rows: usize, known: Option<(usize, f64)>) -> Option<f64> {
        let measured = |index: usize| Some((index, self.0.get(index)?.median()?));
        let floor = known.map_or(0, |(rows, _)| rows);
        let below = (floor..=rows).rev().find_map(measured).or(known);
        let above = (rows..self.0.len()).find_map(measured);
        match (below, above) {
            (Some((from, low)), Some((to, high))) if to > from => {
                let share = (rows - from) as f64 / (to - from) as f64;
                Some(low + share * (high - low))
            }
            (Some(point), _) | (None, Some(point)) => Some(scaled(point, rows)),
            (None, None) => None,
        }
    }
}

/// The seconds of a step of `rows` rows, from those of a step of another size.
fn scaled((from, seconds): (usize, f64), rows: usize) -> f64 {
    let change = ROW_COST * (rows as f64 - from as f64);
    seconds * (1.0 + change).max(0.25)
}

#[cfg(test)]
mod tests;
