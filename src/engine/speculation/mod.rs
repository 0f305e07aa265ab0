//! Speculation: guesses of the next tokens, which one step verifies together.
//!
//! A draw depends on seed, choice, position and logits alone, so a draft is right exactly when the model's own draw at
//! its position equals it: the answer is the same with and without. Here is where drafts come from ([`Drafter`]) and
//! when they pay ([`pace`]); the scheduler verifies them.
//!
//! Drafts are continuations of earlier occurrences of the last tokens ([`lookup`]): in the sequence itself, and in the
//! answers to earlier requests of the same client, with the same salt and the same beginning ([`Answers`]). A guess
//! costs nothing unless it is verified, so every drafter guesses all the time; how often it was right decides how many
//! drafts are verified.
//!
//! With a draft model, or layers of the model that predict further tokens, a drafter only keeps account: it asks for
//! drafts that are not known yet ([`UNKNOWN`]), and the engine has them guessed once their step is scheduled.

mod lookup;
pub(crate) mod pace;

use super::request::Request;
use crate::config::{Speculation, SpeculationMethod};
use crate::plan::inputs::NONE;
use lookup::Text;
use std::collections::VecDeque;
use std::sync::Arc;

/// How likely a new drafter's first guess is held to be right.
const RATE_FIRST: f64 = 0.6;
/// Weight of a new guess in the average.
const RATE_NEW: f64 = 0.1;
/// A share of the way back to [`RATE_FIRST`], at every token: a draft model is asked again after bad guesses.
const RATE_REGAINED: f64 = 0.02;
/// A draft that the draft model has not guessed yet.
pub(crate) const UNKNOWN: u32 = NONE;
/// Maximum kinds of requests whose answers are remembered, and answers of each.
const KINDS_MAX: usize = 64;
const ANSWERS_MAX: usize = 4;
/// Maximum tokens of a remembered answer.
const ANSWER_TOKENS_MAX: usize = 1 << 15;
/// Number of leading tokens in which the prompts of one kind agree, if they have as many.
const BEGINNING: usize = 32;

/// Guesses what a sequence goes on with.
#[derive(Clone, Debug)]
pub(crate) struct Drafter {
    settings: Speculation,
    prompt: Arc<Text>,
    /// The end of the prompt, and the answer.
    answer: Text,
    /// Answers to similar requests, most recent first.
    others: Vec<Answer>,
    /// The answer as the request predicts it, by position. It is then the only source.
    predicted: Option<Arc<[u32]>>,
    /// Tokens of the answer so far.
    generated: usize,
    /// What the last tokens occurred in, and where they went on.
    found: Option<(Source, usize)>,
    /// Share of right guesses, recent ones most.
    rate: f64,
}

#[derive(Clone, Copy, Debug)]
enum Source {
    Answer,
    Prompt,
    Other(usize),
}

impl Drafter {
    /// A drafter after a prompt.
    pub(crate) fn new(settings: Speculation, request: &Request, others: Vec<Answer>) -> Self {
        let predicted = request.predicted.clone();
        let is_looked_up = predicted.is_none() && settings.method == SpeculationMethod::Ngram;
        let indexed: &[u32] = if is_looked_up { &request.prompt } else { &[] };
        let mut prompt = Text::new(settings.prompt_lookup_min);
        indexed.iter().for_each(|&id| prompt.push(id));
        let mut answer = Text::new(settings.prompt_lookup_min);
        let end = indexed
            .len()
            .saturating_sub(settings.prompt_lookup_max as usize);
        indexed[end..].iter().for_each(|&id| answer.push(id));
        let mut drafter = Self {
            settings,
            prompt: Arc::new(prompt),
            answer,
            others,
            predicted,
            generated: 0,
            found: None,
            rate: RATE_FIRST,
        };
        drafter.look_up();
        drafter
    }

    /// Takes the next token of the answer.
    pub(crate) fn push(&mut self, token_id: u32) {
        if self.asks_model() {
            self.generated += 1;
            self.rate += RATE_REGAINED * (RATE_FIRST - self.rate).max(0.0);
            return;
        }
        let guess = self.guess(0);
        if let Some(guess) = guess {
            self.note(guess == token_id);
        }
        self.generated += 1;
        if self.predicted.is_some() {
            return;
        }
        self.answer.push(token_id);
        match &mut self.found {
            Some((_, place)) if guess == Some(token_id) => *place += 1,
            found => *found = None,
        }
        if self.guess(0).is_none() {
            self.look_up();
        }
    }

    /// Takes note of verified drafts of a draft model. Those after the first wrong one say nothing.
    pub(crate) fn note_verified(&mut self, accepted: usize, drafted: usize) {
        if self.asks_model() {
            (0..accepted).for_each(|_| self.note(true));
            if accepted < drafted {
                self.note(false);
            }
        }
    }

    fn note(&mut self, is_right: bool) {
        let right = if is_right { 1.0 } else { 0.0 };
        self.rate += RATE_NEW * (right - self.rate);
    }

    /// Up to `count` guesses of the next tokens.
    pub(crate) fn drafts(&self, count: u32) -> Vec<u32> {
        (0..count as usize)
            .map_while(|index| self.guess(index))
            .collect()
    }

    /// How likely a guess is to be right, if there is one.
    pub(crate) fn rate(&self) -> Option<f64> {
        self.guess(0).map(|_| self.rate)
    }

    /// Whether its guesses come from a draft model, or from layers of the model itself.
    fn asks_model(&self) -> bool {
        self.predicted.is_none() && self.settings.method != SpeculationMethod::Ngram
    }

    /// The answer, for requests that are similar.
    pub(crate) fn into_answer(self) -> Option<Answer> {
        let length = self.answer.len();
        (self.predicted.is_none()
            && !self.asks_model()
            && self.generated > 0
            && length <= ANSWER_TOKENS_MAX)
            .then(|| Answer(Arc::new(self.answer)))
    }

    /// The `index`-th of the next tokens.
    fn guess(&self, index: usize) -> Option<u32> {
        if self.asks_model() {
            return Some(UNKNOWN);
        }
        if let Some(predicted) = &self.predicted {
            return predicted.get(self.generated + index).copied();
        }
        let (source, place) = self.found?;
        let text = self.text(source);
        // Only the sequence's own text may repeat itself after its end.
        let is_own = matches!(source, Source::Answer);
        (place < text.len() && (is_own || place + index < text.len()))
            .then(|| text.ahead(place, index))
    }

    fn text(&self, source: Source) -> &Text {
        match source {
            Source::Answer => &self.answer,
            Source::Prompt => &self.prompt,
            Source::Other(index) => &self.others[index].0,
        }
    }

    /// Finds the longest earlier occurrence of the last tokens. Of equal ones, the sequence's own wins.
    fn look_up(&mut self) {
        let tokens = self.answer.tokens();
        let recent = &tokens[tokens
            .len()
            .saturating_sub(self.settings.prompt_lookup_max as usize)..];
        let sources = [Source::Answer, Source::Prompt]
            .into_iter()
            .chain((0..self.others.len()).map(Source::Other));
        let mut best = None;
        for source in sources {
            let found = self.text(source).find(recent);
            let Some((place, length)) = found else {
                continue;
            };
            if best.is_none_or(|(_, _, longest)| length > longest) {
                best = Some((source, place, length));
            }
        }
        self.found = best.map(|(source, place, _)| (source, place));
    }
}

/// An answer that drafts may be taken from.
#[derive(Clone, Debug)]
pub(crate) struct Answer(Arc<Text>);

/// Requests of one client, with one salt and one beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Kind {
    client: u32,
    salt: Option<String>,
    beginning: Vec<u32>,
}

impl Kind {
    fn of(request: &Request) -> Self {
        let beginning = request.prompt.iter().take(BEGINNING).copied().collect();
        Self {
            client: request.client,
            salt: request.cache_salt.clone(),
            beginning,
        }
    }
}

/// The latest answers, by kind of request. Drafts never come from another client or salt.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    /// The kind used last is at the back.
    kinds: VecDeque<(Kind, VecDeque<Answer>)>,
}

impl Answers {
    /// The answers to similar requests, most recent first.
    pub(crate) fn similar(&self, request: &Request) -> Vec<Answer> {
        let kind = Kind::of(request);
        let found = self.kinds.iter().find(|(other, _)| *other == kind);
        found.map_or_else(Vec::new, |(_, answers)| answers.iter().cloned().collect())
    }

    /// Keeps an answer.
    pub(crate) fn remember(&mut self, request: &Request, answer: Answer) {
        let kind = Kind::of(request);
        let found = self.kinds.iter().position(|(other, _)| *other == kind);
        let (kind, mut answers) = found
            .and_then(|index| self.kinds.remove(index))
            .unwrap_or_else(|| (kind, VecDeque::new()));
        answers.push_front(answer);
        answers.truncate(ANSWERS_MAX);
        self.kinds.push_back((kind, answers));
        if self.kinds.len() > KINDS_MAX {
            self.kinds.pop_front();
        }
    }
}

#[cfg(test)]
mod tests;
