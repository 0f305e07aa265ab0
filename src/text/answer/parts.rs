//! [`Parts`]: the parsed text of an answer: reasoning, content and tool calls.

/// An increment of one tool call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CallDelta {
    /// Index of the call in its answer.
    pub(crate) index: usize,
    /// The function's name, in the call's first delta.
    pub(crate) name: Option<String>,
    /// More of the arguments' JSON.
    pub(crate) arguments: String,
}

/// Parsed text of an answer.
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

    /// Adds a delta; merges it with the last one if both are of the same call.
    pub(crate) fn call(&mut self, index: usize, delta: CallDelta) {
        match self
            .calls
            .last_mut()
            .filter(|last| last.index == index && delta.name.is_none())
        {
            Some(last) => last.arguments.push_str(&delta.arguments),
            None => self.calls.push(CallDelta { index, ..delta }),
        }
    }

    /// Appends later parts.
    pub(crate) fn extend(&mut self, later: Self) {
        self.reasoning.push_str(&later.reasoning);
        self.content.push_str(&later.content);
        for delta in later.calls {
            self.call(delta.index, delta);
        }
    }
}
