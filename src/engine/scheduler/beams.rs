//! Beam search: the sequences of a request that search together, as a group.
//!
//! Every beam is a sequence of its own, with its own block tables. A beam's draw reports its best continuations
//! instead of a token, and the beam then waits, as a sequence with a grammar does. Once all beams of a group have
//! theirs, the group advances: a beam with several continuations forks and shares its blocks, one without any leaves.
//! Blocks are copied as for every fork: when a token is written into a block that another beam still holds, so a
//! beam's last, partly filled block is copied only if two continuations survive.
//!
//! A group is preempted and admitted as a whole. While it waits, its beams are *folded* into the first one, cut to the
//! tokens that all of them share. When these are computed, it is *unfolded*: the others share its blocks and compute
//! what is their own. The longest common beginning contains the prompt, so the restored beams fit wherever
//! [`BeamRoom`] let them in.

use super::commit::Events;
use super::{BatchBuilder, Scheduler};
use crate::engine::beams::{self, BeamSearch, Continuation, Fate, Hypothesis};
use crate::engine::memory::blocks_live_max;
use crate::engine::request::{
    BeamParams, BeamRoom, Event, FinishReason, PromptEvent, RequestError, Token, TokenLogprob,
    Usage,
};
use crate::engine::scheduler::Limits;
use crate::engine::sequence::{Beam, Choice, Exit, GroupId, Sequence, SequenceId, StreamId};
use crate::plan::Window;
use crate::plan::inputs::{NONE, Sampled};
use std::collections::BTreeMap;

/// The beams of one request.
#[derive(Debug)]
pub(super) struct BeamGroup {
    search: BeamSearch<Vec<Token>>,
    /// The choices that still have a receiver. Choice i gets the i-th best answer.
    choices: Vec<Choice>,
    /// The beams, best first.
    members: Vec<SequenceId>,
    /// While folded: the tokens of the first beam that not all beams share.
    folded: Option<Vec<u32>>,
}

/// All groups.
pub(super) type BeamGroups = BTreeMap<GroupId, BeamGroup>;

impl Limits {
    /// How long beams may become.
    pub(crate) fn beam_room(&self) -> BeamRoom {
        BeamRoom {
            block_size: self.memory.block_size,
            groups: self
                .memory
                .windows
                .iter()
                .zip(&self.memory.blocks)
                .map(|(window, &blocks)| (blocks, self.blocks_most(*window)))
                .collect(),
        }
    }

    fn blocks_most(&self, window: Option<Window>) -> u32 {
        let size = self.memory.block_size;
        window.map_or(u32::MAX, |window| {
            blocks_live_max(window.tokens().div_ceil(size), self.tokens_max, size)
        })
    }
}

impl Scheduler {
    /// Makes a new sequence the only beam of a group.
    pub(super) fn start_beams(&mut self, id: SequenceId, params: BeamParams, choices: Vec<Choice>) {
        let group = GroupId(self.sequences[id].order.arrival);
        let search = BeamSearch::new(params);
        self.sequences[id].beam = Some(Box::new(Beam::new(group)));
        self.groups.insert(
            group,
            BeamGroup {
                search,
                choices,
                members: vec![id],
                folded: None,
            },
        );
    }

    /// The group of a beam.
    pub(super) fn group_of(&self, id: SequenceId) -> Option<GroupId> {
        self.sequences[id].beam.as_ref().map(|beam| beam.group)
    }

    fn is_running(&self, id: SequenceId) -> bool {
        self.sequences[id].feed_slot != NONE && self.sequences[id].exit.is_none()
    }

    /// Whether a beam is folded into another one, or about to be: it is neither running, waiting nor leaving.
    pub(super) fn is_folded(&self, id: SequenceId) -> bool {
        let sequence = &self.sequences[id];
        let waits = self.waiting.get(&sequence.order) == Some(&id);
        sequence.beam.is_some() && sequence.feed_slot == NONE && sequence.exit.is_none() && !waits
    }

    /// Seats that running groups may still need for their beams.
    pub(super) fn seats_kept(&self) -> usize {
        self.groups
            .values()
            .map(|group| {
                match group
                    .members
                    .iter()
                    .filter(|&&id| self.is_running(id))
                    .count()
                {
                    0 => 0,
                    running => group.search.width() as usize - running,
                }
            })
            .sum()
    }

    /// Number of seats that a waiting sequence needs.
    pub(super) fn seats_needed(&self, id: SequenceId) -> usize {
        self.group_of(id)
            .map_or(1, |group| self.groups[&group].search.width() as usize)
    }

    /// Number of tokens of a sequence's longest beam, whether folded or not.
    pub(super) fn tokens_unfolded(&self, id: SequenceId) -> u32 {
        let folded = self
            .group_of(id)
            .and_then(|group| self.groups[&group].folded.as_ref());
        self.sequences[id].tokens_total()
            + folded.map_or(0, |tail| {
                u32::try_from(tail.len()).expect("beams are short")
            })
    }

    /// Number of blocks of each KV group that the other beams of a waiting sequence need, so that each holds `tokens`
    /// tokens.
    pub(super) fn blocks_of_others(&self, id: SequenceId, tokens: u32) -> Vec<u32> {
        let others = self.group_of(id).map_or(0, |of| {
            let of = &self.groups[&of];
            let beams = match of.folded {
                Some(_) => u32::try_from(of.members.len()).expect("beams are few"),
                None => of.search.width(),
            };
            beams - 1
        });
        let shared = self.sequences[id].tokens_total() / self.limits.memory.block_size;
        let own = self.memory.blocks_for(tokens).saturating_sub(shared);
        let groups = self.memory.pool().groups().iter().enumerate();
        groups
            .map(|(index, group)| {
                let most = own.min(self.memory.blocks_live_max(index));
                (others * most).min(group.total())
            })
            .collect()
    }

    /// Ends one choice whose receiver was dropped. The group goes on for the others.
    pub(super) fn abort_beams(&mut self, group: GroupId, stream: StreamId) {
        let state = self.groups.get_mut(&group).expect("a beam has a group");
        state.choices.retain(|choice| choice.stream != stream);
        if state.choices.is_empty() {
            self.disband(group);
        }
    }

    /// Preempts all beams of a group.
    pub(super) fn preempt_beams(&mut self, group: GroupId) {
        let members = self.groups[&group].members.clone();
        let preemptions = members
            .iter()
            .map(|&id| self.sequences[id].preemptions)
            .max()
            .unwrap_or(0);
        for id in members {
            self.sequences[id].preemptions = preemptions;
            if self.is_running(id) {
                self.leave(id, Exit::Preempted);
            }
        }
        self.fold_settled();
    }

    /// Discards what the running beams of a group have computed or have in flight, and preempts them.
    pub(super) fn roll_back_beams(&mut self, group: GroupId) {
        for id in self.groups[&group].members.clone() {
            self.discard_computed(id);
            let sequence = &mut self.sequences[id];
            sequence.beam.as_mut().expect("it is a beam").candidates = None;
            if self.is_running(id) {
                self.leave(id, Exit::Preempted);
            }
        }
    }

    /// Takes the best continuations of a beam. None: its grammar allows no token.
    pub(super) fn accept_candidates(
        &mut self,
        id: SequenceId,
        sampled: Sampled,
        events: &mut Events,
    ) {
        let sequence = &mut self.sequences[id];
        if sampled.token_id >= self.limits.vocab && !sequence.is_stuck() {
            self.end_corrupted(id, events);
        } else if let Some(beam) = &mut sequence.beam {
            beam.candidates = Some(sampled.top);
        }
    }

    /// Advances the groups all of whose beams have their continuations, and folds those that were preempted.
    pub(super) fn advance_beams(&mut self, events: &mut Events) {
        let ready: Vec<_> = self
            .groups
            .iter()
            .filter(|(_, group)| self.has_all_candidates(group))
            .map(|(&id, _)| id)
            .collect();
        ready
            .into_iter()
            .for_each(|group| self.advance(group, events));
        self.fold_settled();
    }

    fn has_all_candidates(&self, group: &BeamGroup) -> bool {
        group.members.iter().all(|id| {
            self.sequences[*id]
                .beam
                .as_ref()
                .is_some_and(|b| b.candidates.is_some())
        })
    }

    fn advance(&mut self, id: GroupId, events: &mut Events) {
        let Some(mut group) = self.groups.remove(&id) else {
            return;
        };
        self.counts.generation_tokens += group.members.len() as u64;
        let beams: Vec<&Sequence> = group
            .members
            .iter()
            .map(|&id| &self.sequences[id])
            .collect();
        let candidates = |beam: &'_ Beam| -> (f64, Vec<(u32, f32)>) {
            (beam.score, beam.candidates.clone().unwrap_or_default())
        };
        let found: Vec<_> = beams
            .iter()
            .filter_map(|beam| beam.beam.as_deref())
            .map(candidates)
            .collect();
        let ranked = beams::ranked(
            found
                .iter()
                .map(|(score, candidates)| (*score, &candidates[..])),
        );
        let length = beams[0].tokens_known() + 1 - beams[0].prompt_len();
        let eos = &self.limits.eos_token_ids;
        let next = group.search.select(
            &ranked,
            length,
            |continuation: &Continuation| {
                fate(beams[continuation.beam], continuation.token_id, eos)
            },
            |continuation: &Continuation| beams[continuation.beam].continued(continuation),
        );
        self.report_prefix(&group, events);
        if next.is_empty() {
            self.answer(group, events);
            return;
        }
        let (old, new) = self.breed(&group.members, &next);
        group.members = new;
        self.groups.insert(id, group);
        old.into_iter().for_each(|id| self.drop_beam(id));
        self.seat_beams(id);
    }

    /// Makes a sequence of each continuation: the last one of a beam in its place, the others by forking it. Also
    /// returns the beams without continuation.
    fn breed(
        &mut self,
        beams: &[SequenceId],
        next: &[Continuation],
    ) -> (Vec<SequenceId>, Vec<SequenceId>) {
        let is_last = |index: usize| {
            next[index + 1..]
                .iter()
                .all(|other| other.beam != next[index].beam)
        };
        let mut members = Vec::with_capacity(next.len());
        for (index, continuation) in next.iter().enumerate() {
            let parent = beams[continuation.beam];
            members.push(if is_last(index) {
                parent
            } else {
                self.fork_beam(parent)
            });
        }
        let childless = beams
            .iter()
            .copied()
            .filter(|id| !members.contains(id))
            .collect();
        for (rank, (&id, continuation)) in members.iter().zip(next).enumerate() {
            let sequence = &mut self.sequences[id];
            let answer = sequence.continued(continuation);
            sequence.push(continuation.token_id);
            sequence.pending = 0;
            sequence.order.choice = u32::try_from(rank).expect("beams are few");
            // Known to be allowed: `fate` has asked a copy of the state.
            let allowed = sequence.guide(continuation.token_id);
            debug_assert!(allowed.is_ok(), "a surviving token is allowed");
            if let Some(beam) = &mut sequence.beam {
                (beam.score, beam.answer, beam.candidates) = (continuation.score, answer, None);
            }
        }
        (childless, members)
    }

    fn fork_beam(&mut self, parent: SequenceId) -> SequenceId {
        let parent = &self.sequences[parent];
        let mut holding = self.memory.fork(&parent.holding);
        holding.is_guarded = parent.holding.is_guarded;
        let mut fork = parent.fork(parent.choice, holding);
        fork.preemptions = parent.preemptions;
        fork.resumed = parent.resumed;
        self.sequences.insert(fork)
    }

    /// Removes a beam that no step in flight uses.
    fn drop_beam(&mut self, id: SequenceId) {
        if self.is_folded(id) {
            self.sequences.remove(id);
        } else {
            self.leave(id, Exit::Ended);
        }
    }

    /// Seats the new beams of a running group, and hashes the blocks that are now full of known tokens.
    fn seat_beams(&mut self, group: GroupId) {
        let members = self.groups[&group].members.clone();
        let runs = members.iter().any(|id| self.is_running(*id));
        self.running.sort_by_key(|&id| self.sequences[id].order);
        let running: &[SequenceId] = if runs { &members } else { &[] };
        for &id in running {
            if self.sequences[id].feed_slot == NONE {
                self.seat(id);
            }
            self.register_full_blocks(id);
        }
        self.name_streams(group);
        self.reserve_for_beams(group);
    }

    /// Lets the group's streams name its first beam.
    fn name_streams(&mut self, group: GroupId) {
        let group = &self.groups[&group];
        self.by_stream.extend(
            group
                .choices
                .iter()
                .map(|choice| (choice.stream, group.members[0])),
        );
    }

    /// Reserves for each beam of a guarded group what it may still need.
    fn reserve_for_beams(&mut self, group: GroupId) {
        let members = self.groups[&group].members.clone();
        if !self.sequences[members[0]].holding.is_guarded {
            return;
        }
        for group in 0..self.memory.kv_groups() {
            for &id in &members {
                let holding = &mut self.sequences[id].holding;
                self.memory.unreserve(holding, group);
            }
            for &id in &members {
                if self.is_running(id) {
                    let sequence = &mut self.sequences[id];
                    let tokens = sequence.tokens_limit;
                    self.memory
                        .reserve_rest(&mut sequence.holding, group, tokens);
                }
            }
        }
    }

    /// Folds the preempted groups of which no step in flight uses a beam, and queues them.
    pub(super) fn fold_settled(&mut self) {
        let settled: Vec<_> = self
            .groups
            .iter()
            .filter(|(_, group)| group.members.iter().all(|&id| self.is_folded(id)))
            .map(|(&id, _)| id)
            .collect();
        settled.into_iter().for_each(|group| self.fold(group));
    }

    /// Folds a group into its first beam, and queues that. None of the beams holds a block.
    fn fold(&mut self, id: GroupId) {
        let group = self.groups.get_mut(&id).expect("a beam has a group");
        let first = group.members[0];
        let tail = group.folded.take().unwrap_or_default();
        self.sequences[first].tokens.extend(tail);
        for &member in &group.members {
            let sequence = &mut self.sequences[member];
            debug_assert!(sequence.holding.is_empty(), "a folded beam holds nothing");
            sequence.pending = 0;
            sequence.beam.as_mut().expect("it is a beam").candidates = None;
        }
        if group.members.len() > 1 {
            let tokens = &self.sequences[first].tokens;
            let common = |id: &SequenceId| {
                let other = self.sequences[*id].tokens.iter();
                tokens
                    .iter()
                    .zip(other)
                    .take_while(|(one, other)| one == other)
                    .count()
            };
            let common = group.members[1..]
                .iter()
                .map(common)
                .min()
                .unwrap_or(tokens.len());
            let sequence = &mut self.sequences[first];
            group.folded = Some(sequence.tokens.split_off(common));
            self.memory.cut_hashes(&mut sequence.holding, common);
        }
        let order = self.sequences[first].order;
        self.waiting.insert(order, first);
        self.name_streams(id);
    }

    /// Unfolds the group of a beam whose tokens are all computed, if it is folded. The beams share the blocks so far.
    /// Returns whether it was folded.
    pub(super) fn unfold(&mut self, first: SequenceId) -> bool {
        let Some(id) = self.group_of(first) else {
            return false;
        };
        let group = self.groups.get_mut(&id).expect("a beam has a group");
        let Some(tail) = group.folded.take() else {
            return false;
        };
        let members = group.members.clone();
        self.sequences[first].tokens.extend(tail);
        for &member in &members[1..] {
            let source = &self.sequences[first];
            let own = &self.sequences[member].holding;
            let holding = self.memory.share(&source.holding, own);
            let (preemptions, resumed) = (source.preemptions, source.resumed);
            let valid_from_step = source.valid_from_step;
            let sequence = &mut self.sequences[member];
            sequence.holding = holding;
            sequence.preemptions = preemptions;
            sequence.resumed = resumed;
            sequence.valid_from_step = valid_from_step;
        }
        self.seat_beams(id);
        true
    }

    /// The beams after a device loss: nothing is computed or in flight any more.
    pub(super) fn restart_beams(&mut self) {
        for id in self.groups.keys().copied().collect::<Vec<_>>() {
            self.fold(id);
        }
    }

    fn report_prefix(&mut self, group: &BeamGroup, events: &mut Events) {
        for &id in &group.members {
            if let Some(report) = self.sequences[id].prefix_report.take() {
                let first = group.choices.iter().find(|choice| choice.index == 0);
                events.extend(
                    first.map(|choice| (choice.stream, Event::Prompt(PromptEvent::Prefix(report)))),
                );
            }
        }
    }

    /// Sends the answers, best first, and ends the group.
    fn answer(&mut self, group: BeamGroup, events: &mut Events) {
        let usage = self.sequences[group.members[0]].usage();
        let (choices, members) = (group.choices, group.members);
        let answers = group.search.into_finished();
        for choice in choices {
            self.by_stream.remove(&choice.stream);
            let Some(Hypothesis { answer, reason, .. }) = answers.get(choice.index as usize) else {
                self.counts.finished_error += 1;
                events.push((choice.stream, Event::Failed(RequestError::TooFewAnswers)));
                continue;
            };
            match reason {
                FinishReason::Stop => self.counts.finished_stop += 1,
                FinishReason::Length => self.counts.finished_length += 1,
            }
            let completion_tokens =
                u32::try_from(answer.len()).expect("an answer fits the context");
            events.extend(
                answer
                    .iter()
                    .map(|token| (choice.stream, Event::Token(token.clone()))),
            );
            let usage = Usage {
                completion_tokens,
                ..usage
            };
            events.push((
                choice.stream,
                Event::Finished {
                    reason: *reason,
                    usage,
                },
            ));
        }
        members.into_iter().for_each(|id| self.drop_beam(id));
    }

    /// Ends all choices of a group with an error.
    pub(super) fn end_beams(&mut self, group: GroupId, event: &Event, events: &mut Events) {
        for choice in std::mem::take(
            &mut self
                .groups
                .get_mut(&group)
                .expect("a beam has a group")
                .choices,
        ) {
            self.counts.finished_error += 1;
            self.by_stream.remove(&choice.stream);
            events.push((choice.stream, event.clone()));
        }
        self.disband(group);
    }

    fn disband(&mut self, group: GroupId) {
        let Some(group) = self.groups.remove(&group) else {
            return;
        };
        for id in group.members {
            self.drop_beam(id);
        }
    }

    /// The streams that a sequence computes its prompt for.
    pub(super) fn streams_of(&self, id: SequenceId) -> Vec<StreamId> {
        match self.group_of(id) {
            Some(group) => self.groups[&group]
                .choices
                .iter()
                .map(|choice| choice.stream)
                .collect(),
            None => self.sequences[id].streams().collect(),
        }
    }

    /// Beams that are in no queue.
    pub(super) fn folded_len(&self) -> usize {
        self.sequences
            .ids()
            .filter(|&id| self.is_folded(id))
            .count()
    }

    /// Draws the next token of a sequence whose tokens are all computed, or unfolds its group.
    pub(super) fn draw_or_unfold(&mut self, id: SequenceId, row: u32, builder: &mut BatchBuilder) {
        if !self.unfold(id) {
            self.start_drafts(id);
            self.push_draw(id, row, builder);
            self.fork(id, row, builder);
        }
    }
}

/// Whether a beam ends with this token.
fn fate(beam: &Sequence, token_id: u32, eos: &[u32]) -> Fate {
    let params = beam.params();
    match beam.would_end_with(token_id) {
        Err(_) => Fate::Forbidden,
        Ok(true) => Fate::Ends(FinishReason::Stop),
        Ok(false) if !params.ignore_eos && eos.contains(&token_id) => {
            Fate::Ends(FinishReason::Stop)
        }
        Ok(false) if params.stop_token_ids.contains(&token_id) => Fate::Ends(FinishReason::Stop),
        Ok(false) if beam.tokens_known() + 1 >= beam.tokens_limit => {
            Fate::Ends(FinishReason::Length)
        }
        Ok(false) => Fate::Continues,
    }
}

impl Sequence {
    /// The beam's answer with one more token.
    fn continued(&self, continuation: &Continuation) -> Vec<Token> {
        let Some(beam) = &self.beam else {
            return Vec::new();
        };
        let wanted = self.params().logprobs;
        let top = beam
            .candidates
            .iter()
            .flatten()
            .take(wanted.unwrap_or(0) as usize)
            .map(|&(token_id, logprob)| TokenLogprob { token_id, logprob });
        let token = Token {
            id: continuation.token_id,
            logprob: wanted.map(|_| continuation.logprob),
            rank: None,
            top_logprobs: top.collect(),
            cached: self.cached(),
            drafts: None,
        };
        let mut answer = Vec::with_capacity(beam.answer.len() + 1);
        answer.extend_from_slice(&beam.answer);
        answer.push(token);
        answer
    }
}

#[cfg(test)]
mod tests;
