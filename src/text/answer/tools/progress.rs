//! What a parser of one notation says of the calls that it reads.

use super::CallDelta;

/// What the text of a call is so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// More text is needed.
    Open,
    /// The call has ended.
    Whole,
    /// It is no call.
    NoCall,
}

/// A call whose arguments are made while they are read.
#[derive(Clone, Debug, Default)]
pub(crate) struct OpenCall {
    pub(crate) name: Option<String>,
    /// JSON of the arguments that was not reported yet.
    pub(crate) arguments: String,
    is_told: bool,
}

impl OpenCall {
    /// A call of this function.
    pub(crate) fn of(name: &str) -> Self {
        Self {
            name: Some(name.to_owned()),
            ..Self::default()
        }
    }

    /// What is new since the last time: the name once it is known, and more of the arguments.
    pub(crate) fn take(&mut self) -> Option<CallDelta> {
        let name = self.name.as_ref()?;
        let is_first = !std::mem::replace(&mut self.is_told, true);
        let arguments = std::mem::take(&mut self.arguments);
        (is_first || !arguments.is_empty()).then(|| CallDelta {
            name: is_first.then(|| name.clone()),
            arguments,
            ..CallDelta::default()
        })
    }
}
