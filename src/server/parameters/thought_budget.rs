//! `thinking_token_budget`: how many tokens a thought may have, as a constraint around what else constrains an answer.
//! When they are used up, the tokens that end the thought are the only ones that may follow; then the answer goes on.

use crate::engine::request::{Constraint, ConstraintState, SharedConstraint, Unsatisfiable};
use crate::text::answer::{AnswerFormat, AnswerParser, Parts, ReasoningParser};
use crate::text::{TextStream, Tokenizer};
use std::fmt;
use std::sync::Arc;

/// What follows an analysis of harmony: the answer.
const HARMONY_ANSWER: &str = "<|end|><|start|>assistant<|channel|>final<|message|>";

/// A budget of thought for the answers to one prompt.
pub(crate) struct ThoughtBudget {
    tokens: u32,
    /// The tokens that end a thought.
    closing: Arc<[u32]>,
    /// The decoder, and the parser that tells thought from answer, before the first token.
    reader: Reader,
    inner: Option<SharedConstraint>,
}

#[derive(Clone)]
struct Reader {
    text: TextStream,
    answer: AnswerParser,
}

/// A choice under a [`ThoughtBudget`].
struct State {
    /// Tokens that are left.
    left: u32,
    /// Number of closing tokens that have been forced, while they are.
    closed: usize,
    closing: Arc<[u32]>,
    reader: Reader,
    inner: Option<Box<dyn ConstraintState>>,
}

impl ThoughtBudget {
    /// `answer` is the parser of the answers, before their first token. The constraint is `inner` if the model has no
    /// form of thoughts.
    pub(crate) fn around(
        inner: Option<SharedConstraint>,
        tokens: u32,
        (format, answer): (AnswerFormat, AnswerParser),
        tokenizer: &Arc<Tokenizer>,
    ) -> Option<SharedConstraint> {
        let closing = match (format.reasoning, format.reasoning.tags()) {
            (ReasoningParser::Harmony, _) => HARMONY_ANSWER,
            (_, Some((_, close))) => close,
            (_, None) => return inner,
        };
        let closing = match tokenizer.id_of(closing) {
            Some(id) => vec![id],
            None => tokenizer.encode(closing, false).unwrap_or_default(),
        };
        // Special tokens are read as text: they are what begins and ends thoughts.
        let text = TextStream::new(Some(tokenizer.clone()), &[], false);
        Some(SharedConstraint(Arc::new(Self {
            tokens,
            closing: closing.into(),
            reader: Reader { text, answer },
            inner,
        })))
    }
}

impl Constraint for ThoughtBudget {
    fn start(&self) -> Box<dyn ConstraintState> {
        Box::new(State {
            left: self.tokens,
            closed: 0,
            closing: self.closing.clone(),
            reader: self.reader.clone(),
            inner: self.inner.as_ref().map(|inner| inner.0.start()),
        })
    }
}

impl State {
    /// The tokens that must end the thought now; none while it has tokens left, and after it.
    fn closing(&self) -> &[u32] {
        let is_used_up = self.left == 0 && self.reader.answer.is_reasoning();
        if is_used_up || self.closed > 0 {
            &self.closing[self.closed..]
        } else {
            &[]
        }
    }

    /// Reads a token, and counts it if it is one of a thought.
    fn read(&mut self, token_id: u32) {
        let Reader { text, answer } = &mut self.reader;
        let was_reasoning = answer.is_reasoning();
        answer.push(&text.push(token_id).text, &mut Parts::default());
        if was_reasoning && answer.is_reasoning() {
            self.left = self.left.saturating_sub(1);
        }
    }

    /// Takes a closing token. A thought that goes on after all of them cannot be ended.
    fn close(&mut self, token_id: u32) {
        self.closed += 1;
        self.read(token_id);
        if self.closed == self.closing.len() {
            self.closed = 0;
            if self.reader.answer.is_reasoning() {
                self.left = u32::MAX;
            }
        }
    }
}

impl ConstraintState for State {
    fn fork(&self) -> Box<dyn ConstraintState> {
        Box::new(Self {
            left: self.left,
            closed: self.closed,
            closing: self.closing.clone(),
            reader: self.reader.clone(),
            inner: self.inner.as_ref().map(|inner| inner.fork()),
        })
    }

    fn fill_mask(&mut self, mask: &mut [u32]) -> Result<bool, Unsatisfiable> {
        let Some(&id) = self.closing().first() else {
            return self
                .inner
                .as_mut()
                .map_or(Ok(false), |inner| inner.fill_mask(mask));
        };
        let word = mask.get_mut(id as usize / 32).ok_or(Unsatisfiable)?;
        *word = 1 << (id % 32);
        Ok(true)
    }

    fn accept(&mut self, token_id: u32) -> Result<bool, Unsatisfiable> {
        match self.closing().first() {
            None => self.read(token_id),
            Some(&id) if id == token_id => self.close(token_id),
            Some(_) => return Err(Unsatisfiable),
        }
        self.inner
            .as_mut()
            .map_or(Ok(false), |inner| inner.accept(token_id))
    }

    fn forced(&mut self) -> Vec<u32> {
        let closing = self.closing();
        if !closing.is_empty() {
            return closing.to_vec();
        }
        self.inner
            .as_mut()
            .map_or_else(Vec::new, |inner| inner.forced())
    }
}

impl fmt::Debug for ThoughtBudget {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("ThoughtBudget");
        debug.field("tokens", &self.tokens);
        debug.field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl fmt::Debug for State {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("ThoughtBudget");
        debug.field("left", &self.left);
        debug.field("inner", &self.inner).finish_non_exhaustive()
    }
}
