//! [`Parts`]: what an answer's text turned out to be: reasoning, content and calls.

/// More of one call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CallDelta {
    /// Number of the call in its answer.
    pub(crate) index: usize,
    /// With the call's first delta.
    pub(crate) name: Option<String>,
    /// More of the arguments' JSON.
    pub(crate) arguments: String,
}

/// What an answer's text turned out to be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parts {
    pub(crate) reasoning: String,
    pub(crate) content: String,
    pub(crate) calls: Vec<CallDelta>,
}

impl Parts {
    pub(crate) fn is_empty(&self) -> bool {
        self.reasoning.is_empty() && self.content.is_empty() && self.calls.is_empty()
    }

    /// Adds a delta, to the last one if that is of the same call.
    pub(crate) fn call(&mut self, index: usize, delta: CallDelta) {
        match self.calls.last_mut().filter(|last| last.index == index && delta.name.is_none()) {
            Some(last) => last.arguments.push_str(&delta.arguments),
            None => self.calls.push(CallDelta { index, ..delta }),
        }
    }

    /// Adds later parts.
    #[cfg(test)]
    pub(crate) fn extend(&mut self, later: Self) {
        self.reasoning.push_str(&later.reasoning);
        self.content.push_str(&later.content);
        for delta in later.calls {
            self.call(delta.index, delta);
        }
    }
}
