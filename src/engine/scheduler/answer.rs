//! Answers: a token that is appended to one, and its one end.

use super::Scheduler;
use crate::engine::request::{
    Event, FinishReason, PromptEvent, RequestError, Token, TokenLogprob, Usage,
};
use crate::engine::sequence::{Exit, Sequence, SequenceId, StreamId};
use crate::plan::inputs::Sampled;

/// Events in the order they happened.
pub type Events = Vec<(StreamId, Event)>;

impl Scheduler {
    /// Ends a sequence whose results are not valid numbers. Its blocks are removed from the prefix cache.
    pub(super) fn end_corrupted(&mut self, id: SequenceId, events: &mut Events) {
        self.queues.counts.corrupted_requests += 1;
        let holding = &mut self.queues.sequences[id].holding;
        self.queues.memory.withdraw_everywhere(holding);
        self.end(id, &Event::Failed(RequestError::NumericalError), events);
    }

    /// Appends a drawn token, and those that a constraint forces after it. Returns whether one of them was the last.
    pub(super) fn append_drawn(
        &mut self,
        id: SequenceId,
        sampled: Sampled,
        events: &mut Events,
    ) -> bool {
        let drawn = answered(&self.queues.sequences[id], sampled);
        if self.append(id, drawn, events) {
            return true;
        }
        for token_id in self.queues.sequences[id].forced() {
            let forced = answered(
                &self.queues.sequences[id],
                Sampled {
                    token_id,
                    ..Sampled::default()
                },
            );
            if self.append(id, forced, events) {
                return true;
            }
        }
        false
    }

    /// Appends a drawn or forced token. Returns whether it was the last.
    fn append(&mut self, id: SequenceId, token: Token, events: &mut Events) -> bool {
        let sequence = &mut self.queues.sequences[id];
        let token_id = token.id;
        debug_assert!(
            token_id < self.queues.limits.vocab,
            "a token is in the vocabulary"
        );
        debug_assert!(
            sequence.tokens_known() < sequence.tokens_limit,
            "a sequence ends at its limit"
        );
        sequence.push(token_id);
        self.queues.counts.generation_tokens += 1;
        if let Some(report) = sequence.prefix_report.take() {
            events.push((
                sequence.choice.stream,
                Event::Prompt(PromptEvent::Prefix(report)),
            ));
        }
        events.push((sequence.choice.stream, Event::Token(token)));
        let reason = match sequence.guide(token_id) {
            Ok(true) => Some(FinishReason::Stop),
            Ok(false) => self.finish_reason(id, token_id),
            Err(_) => {
                self.end(id, &Event::Failed(RequestError::Grammar), events);
                return true;
            }
        };
        let Some(reason) = reason else { return false };
        let usage = self.queues.sequences[id].usage();
        self.end(id, &Event::Finished { reason, usage }, events);
        true
    }

    fn finish_reason(&self, id: SequenceId, token_id: u32) -> Option<FinishReason> {
        let sequence = &self.queues.sequences[id];
        let params = sequence.params();
        let end_token = !params.ignore_eos && self.queues.limits.eos_token_ids.contains(&token_id);
        if end_token || params.stop_token_ids.contains(&token_id) {
            return Some(FinishReason::Stop);
        }
        (sequence.tokens_known() >= sequence.tokens_limit).then_some(FinishReason::Length)
    }

    /// Sends the one terminal event of a choice, and of the choices that were to fork from it.
    pub(super) fn end(&mut self, id: SequenceId, event: &Event, events: &mut Events) {
        if let Some(group) = self.queues.sequences[id].group() {
            return self.beams.end(&mut self.queues, group, event, events);
        }
        let streams: Vec<_> = self.queues.sequences[id].streams().collect();
        self.queues.sequences[id].forks.clear();
        for stream in streams {
            match event {
                Event::Finished {
                    reason: FinishReason::Stop,
                    ..
                } => self.queues.counts.finished_stop += 1,
                Event::Finished {
                    reason: FinishReason::Length,
                    ..
                } => self.queues.counts.finished_length += 1,
                _ => self.queues.counts.finished_error += 1,
            }
            let named = self.queues.by_stream.remove(&stream);
            debug_assert_eq!(named, Some(id), "a choice ends once");
            events.push((stream, event.clone()));
        }
        self.queues.leave(id, Exit::Ended);
    }
}

/// A token of an answer, with the details that its request asked for.
fn answered(sequence: &Sequence, sampled: Sampled) -> Token {
    let drafts = sequence
        .request
        .explain_drafts
        .then_some(sequence.draft_report);
    Token {
        drafts,
        ..token(
            sampled,
            sequence.params().logprobs.is_some(),
            sequence.usage(),
        )
    }
}

/// A token of a prompt or an answer.
pub(super) fn token(sampled: Sampled, wants_logprob: bool, usage: Usage) -> Token {
    Token {
        id: sampled.token_id,
        logprob: wants_logprob.then_some(sampled.logprob),
        rank: wants_logprob.then_some(sampled.rank),
        top_logprobs: sampled
            .top
            .into_iter()
            .map(|(token_id, logprob)| TokenLogprob { token_id, logprob })
            .collect(),
        cached: usage.cached,
        drafts: None,
    }
}
