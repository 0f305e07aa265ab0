//! What became of the drafts of a choice, and why there were none.

/// Why a token is drawn without drafts after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DraftSkip {
    /// The last tokens occurred nowhere before, so there is no guess of the next ones.
    NothingFound,
    /// By the measured times of steps and the share of guesses that were right, drafts would yield fewer tokens per
    /// second.
    NotWorthwhile,
    /// More sequences run than drafts are verified with.
    ManySequences,
    /// The step, the KV pool or the rest of the answer had no room for drafts, or they would have ended the answer.
    NoRoom,
}

impl DraftSkip {
    /// All reasons, with their names in metrics and replies, by their values.
    pub const ALL: [(Self, &'static str); 4] = [
        (Self::NothingFound, "nothing_found"),
        (Self::NotWorthwhile, "not_worthwhile"),
        (Self::ManySequences, "many_sequences"),
        (Self::NoRoom, "no_room"),
    ];
}

/// What became of the drafts of one choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DraftReport {
    /// Drafts that were verified.
    pub drafted: u32,
    /// Those of them that were right.
    pub accepted: u32,
    /// Draws without drafts, by [`DraftSkip`].
    pub skips: [u32; DraftSkip::ALL.len()],
}

impl std::iter::Sum for DraftReport {
    fn sum<I: Iterator<Item = Self>>(reports: I) -> Self {
        reports.fold(Self::default(), |mut sum, next| {
            sum.drafted += next.drafted;
            sum.accepted += next.accepted;
            for (sum, next) in sum.skips.iter_mut().zip(next.skips) {
                *sum += next;
            }
            sum
        })
    }
}
