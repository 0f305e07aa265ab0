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

use super::answer::Events;
use super::queues::Queues;
use crate::engine::beams::{self, BeamSearch, Continuation, Fate, Hypothesis};
use crate::engine::memory::blocks_live_max;
use crate::engine::request::{
    BeamParams, BeamRoom, Event, FinishReason, PromptEvent, RequestError, Token, TokenLogprob,
    Usage,
};
use crate::engine::scheduler::Limits;
use crate::engine::sequence::{Beam, Choice, Exit, GroupId, Sequence, SequenceId, StreamId};
use crate::plan::Window;
use crate::plan::inputs::NONE;
use std::collections::BTreeMap;

/// The beams of one request.
#[derive(Debug)]
struct BeamGroup {
    search: BeamSearch<Vec<Token>>,
    /// The choices that still have a receiver. Choice i gets the i-th best answer.
    choices: Vec<Choice>,
    /// The beams, best first.
    members: Vec<SequenceId>,
    /// While folded: the tokens of the first beam that not all beams share.
    folded: Option<Vec<u32>>,
}

impl BeamGroup {
    fn has_all_candidates(&self, queues: &Queues) -> bool {
        let beams = self.members.iter().map(|&id| &queues.sequences[id].beam);
        let mut candidates = beams.map(|beam| beam.as_ref().map(|beam| &beam.candidates));
        candidates.all(|candidates| candidates.is_some_and(Option::is_some))
    }
}

/// All groups. Their beams are sequences in the queues.
#[derive(Debug, Default)]
pub(super) struct Beams {
    groups: BTreeMap<GroupId, BeamGroup>,
}

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

impl Beams {
    /// Whether there is no group.
    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Makes a new sequence the only beam of a group.
    pub(super) fn start(
        &mut self,
        queues: &mut Queues,
        id: SequenceId,
        params: BeamParams,
        choices: Vec<Choice>,
    ) {
        let group = GroupId(queues.sequences[id].order.arrival);
        let search = BeamSearch::new(params);
        queues.sequences[id].beam = Some(Box::new(Beam::new(group)));
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

    /// Seats that running groups may still need for their beams.
    pub(super) fn seats_kept(&self, queues: &Queues) -> usize {
        self.groups
            .values()
            .map(|group| {
                match group
                    .members
                    .iter()
                    .filter(|&&id| queues.sequences[id].is_running())
                    .count()
                {
                    0 => 0,
                    running => group.search.width() as usize - running,
                }
            })
            .sum()
    }

    /// Number of seats that a waiting sequence needs.
    pub(super) fn seats_needed(&self, queues: &Queues, id: SequenceId) -> usize {
        queues.sequences[id]
            .group()
            .map_or(1, |group| self.groups[&group].search.width() as usize)
    }

    /// Number of tokens of a sequence's longest beam, whether folded or not.
    pub(super) fn tokens_unfolded(&self, queues: &Queues, id: SequenceId) -> u32 {
        let folded = queues.sequences[id]
            .group()
            .and_then(|group| self.groups[&group].folded.as_ref());
        queues.sequences[id].tokens_total()
            + folded.map_or(0, |tail| {
                u32::try_from(tail.len()).expect("beams are short")
            })
    }

    /// Number of blocks of each KV group that the other beams of a waiting sequence need, so that each holds `tokens`
    /// tokens.
    pub(super) fn blocks_of_others(
        &self,
        queues: &Queues,
        id: SequenceId,
        tokens: u32,
    ) -> Vec<u32> {
        let others = queues.sequences[id].group().map_or(0, |of| {
            let of = &self.groups[&of];
            let beams = match of.folded {
                Some(_) => u32::try_from(of.members.len()).expect("beams are few"),
                None => of.search.width(),
            };
            beams - 1
        });
        let shared = queues.sequences[id].tokens_total() / queues.limits.memory.block_size;
        let own = queues.memory.blocks_for(tokens).saturating_sub(shared);
        let groups = queues.memory.pool().groups().iter().enumerate();
        groups
            .map(|(index, group)| {
                let most = own.min(queues.memory.blocks_live_max(index));
                (others * most).min(group.total())
            })
            .collect()
    }

    /// Ends one choice whose receiver was dropped. The group goes on for the others.
    pub(super) fn abort(&mut self, queues: &mut Queues, group: GroupId, stream: StreamId) {
        let state = self.groups.get_mut(&group).expect("a beam has a group");
        state.choices.retain(|choice| choice.stream != stream);
        if state.choices.is_empty() {
            self.disband(queues, group);
        }
    }

    /// Preempts all beams of a group.
    pub(super) fn preempt(&mut self, queues: &mut Queues, group: GroupId) {
        let members = self.groups[&group].members.clone();
        let preemptions = members
            .iter()
            .map(|&id| queues.sequences[id].preemptions)
            .max()
            .unwrap_or(0);
        for id in members {
            queues.sequences[id].preemptions = preemptions;
            if queues.sequences[id].is_running() {
                queues.leave(id, Exit::Preempted);
            }
        }
        self.fold_settled(queues);
    }

    /// Discards what the running beams of a group have computed or have in flight, and preempts them.
    pub(super) fn roll_back(&self, queues: &mut Queues, group: GroupId) {
        for id in self.groups[&group].members.clone() {
            queues.discard_computed(id);
            let sequence = &mut queues.sequences[id];
            sequence.beam.as_mut().expect("it is a beam").candidates = None;
            if queues.sequences[id].is_running() {
                queues.leave(id, Exit::Preempted);
            }
        }
    }

    /// Advances the groups all of whose beams have their continuations, and folds those that were preempted.
    pub(super) fn advance(&mut self, queues: &mut Queues, events: &mut Events) {
        let ready: Vec<_> = self
            .groups
            .iter()
            .filter(|(_, group)| group.has_all_candidates(queues))
            .map(|(&id, _)| id)
            .collect();
        ready
            .into_iter()
            .for_each(|group| self.advance_group(queues, group, events));
        self.fold_settled(queues);
    }

    fn advance_group(&mut self, queues: &mut Queues, id: GroupId, events: &mut Events) {
        let Some(mut group) = self.groups.remove(&id) else {
            return;
        };
        queues.counts.generation_tokens += group.members.len() as u64;
        let beams: Vec<&Sequence> = group
            .members
            .iter()
            .map(|&id| &queues.sequences[id])
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
        let eos = &queues.limits.eos_token_ids;
        let next = group.search.select(
            &ranked,
            length,
            |continuation: &Continuation| {
                fate(beams[continuation.beam], continuation.token_id, eos)
            },
            |continuation: &Continuation| beams[continuation.beam].continued(continuation),
        );
        report_prefix(queues, &group, events);
        if next.is_empty() {
            answer(queues, group, events);
            return;
        }
        let (old, new) = breed(queues, &group.members, &next);
        group.members = new;
        self.groups.insert(id, group);
        old.into_iter().for_each(|id| drop_beam(queues, id));
        self.seat_beams(queues, id);
    }

    /// Seats the new beams of a running group, and hashes the blocks that are now full of known tokens.
    fn seat_beams(&self, queues: &mut Queues, group: GroupId) {
        let members = self.groups[&group].members.clone();
        let runs = members.iter().any(|id| queues.sequences[*id].is_running());
        queues.running.sort_by_key(|&id| queues.sequences[id].order);
        let running: &[SequenceId] = if runs { &members } else { &[] };
        for &id in running {
            if queues.sequences[id].feed_slot == NONE {
                queues.seat(id);
            }
            queues.register_full_blocks(id);
        }
        self.name_streams(queues, group);
        self.reserve_for_beams(queues, group);
    }

    /// Lets the group's streams name its first beam.
    fn name_streams(&self, queues: &mut Queues, group: GroupId) {
        let group = &self.groups[&group];
        queues.by_stream.extend(
            group
                .choices
                .iter()
                .map(|choice| (choice.stream, group.members[0])),
        );
    }

    /// Reserves for each beam of a guarded group what it may still need.
    fn reserve_for_beams(&self, queues: &mut Queues, group: GroupId) {
        let members = self.groups[&group].members.clone();
        if !queues.sequences[members[0]].holding.is_guarded {
            return;
        }
        for group in 0..queues.memory.kv_groups() {
            for &id in &members {
                let holding = &mut queues.sequences[id].holding;
                queues.memory.unreserve(holding, group);
            }
            for &id in &members {
                if queues.sequences[id].is_running() {
                    let sequence = &mut queues.sequences[id];
                    let tokens = sequence.tokens_limit;
                    queues
                        .memory
                        .reserve_rest(&mut sequence.holding, group, tokens);
                }
            }
        }
    }

    /// Folds the preempted groups of which no step in flight uses a beam, and queues them.
    pub(super) fn fold_settled(&mut self, queues: &mut Queues) {
        let settled: Vec<_> = self
            .groups
            .iter()
            .filter(|(_, group)| group.members.iter().all(|&id| queues.is_folded(id)))
            .map(|(&id, _)| id)
            .collect();
        settled
            .into_iter()
            .for_each(|group| self.fold(queues, group));
    }

    /// Folds a group into its first beam, and queues that. None of the beams holds a block.
    fn fold(&mut self, queues: &mut Queues, id: GroupId) {
        let group = self.groups.get_mut(&id).expect("a beam has a group");
        let first = group.members[0];
        let tail = group.folded.take().unwrap_or_default();
        queues.sequences[first].tokens.extend(tail);
        for &member in &group.members {
            let sequence = &mut queues.sequences[member];
            debug_assert!(sequence.holding.is_empty(), "a folded beam holds nothing");
            sequence.pending = 0;
            sequence.beam.as_mut().expect("it is a beam").candidates = None;
        }
        if group.members.len() > 1 {
            let tokens = &queues.sequences[first].tokens;
            let common = |id: &SequenceId| {
                let other = queues.sequences[*id].tokens.iter();
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
            let sequence = &mut queues.sequences[first];
            group.folded = Some(sequence.tokens.split_off(common));
            queues.memory.cut_hashes(&mut sequence.holding, common);
        }
        let order = queues.sequences[first].order;
        queues.waiting.insert(order, first);
        self.name_streams(queues, id);
    }

    /// Unfolds the group of a beam whose tokens are all computed, if it is folded. The beams share the blocks so far.
    /// Returns whether it was folded.
    pub(super) fn unfold(&mut self, queues: &mut Queues, first: SequenceId) -> bool {
        let Some(id) = queues.sequences[first].group() else {
            return false;
        };
        let group = self.groups.get_mut(&id).expect("a beam has a group");
        let Some(tail) = group.folded.take() else {
            return false;
        };
        let members = group.members.clone();
        queues.sequences[first].tokens.extend(tail);
        for &member in &members[1..] {
            let source = &queues.sequences[first];
            let own = &queues.sequences[member].holding;
            let holding = queues.memory.share(&source.holding, own);
            let (preemptions, resumed) = (source.preemptions, source.resumed);
            let valid_from_step = source.valid_from_step;
            let sequence = &mut queues.sequences[member];
            sequence.holding = holding;
            sequence.preemptions = preemptions;
            sequence.resumed = resumed;
            sequence.valid_from_step = valid_from_step;
        }
        self.seat_beams(queues, id);
        true
    }

    /// The beams after a device loss: nothing is computed or in flight any more.
    pub(super) fn restart(&mut self, queues: &mut Queues) {
        for id in self.groups.keys().copied().collect::<Vec<_>>() {
            self.fold(queues, id);
        }
    }

    /// Ends all choices of a group with an error.
    pub(super) fn end(
        &mut self,
        queues: &mut Queues,
        group: GroupId,
        event: &Event,
        events: &mut Events,
    ) {
        for choice in std::mem::take(
            &mut self
                .groups
                .get_mut(&group)
                .expect("a beam has a group")
                .choices,
        ) {
            queues.counts.finished_error += 1;
            queues.by_stream.remove(&choice.stream);
            events.push((choice.stream, event.clone()));
        }
        self.disband(queues, group);
    }

    fn disband(&mut self, queues: &mut Queues, group: GroupId) {
        let Some(group) = self.groups.remove(&group) else {
            return;
        };
        for id in group.members {
            drop_beam(queues, id);
        }
    }

    /// The streams that a sequence computes its prompt for.
    pub(super) fn streams_of(&self, queues: &Queues, id: SequenceId) -> Vec<StreamId> {
        match queues.sequences[id].group() {
            Some(group) => self.groups[&group]
                .choices
                .iter()
                .map(|choice| choice.stream)
                .collect(),
            None => queues.sequences[id].streams().collect(),
        }
    }
}

/// Makes a sequence of each continuation: the last one of a beam in its place, the others by forking it. Also
/// returns the beams without continuation.
fn breed(
    queues: &mut Queues,
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
            fork_beam(queues, parent)
        });
    }
    let childless = beams
        .iter()
        .copied()
        .filter(|id| !members.contains(id))
        .collect();
    for (rank, (&id, continuation)) in members.iter().zip(next).enumerate() {
        let sequence = &mut queues.sequences[id];
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

fn fork_beam(queues: &mut Queues, parent: SequenceId) -> SequenceId {
    let parent = &queues.sequences[parent];
    let mut holding = queues.memory.fork(&parent.holding);
    holding.is_guarded = parent.holding.is_guarded;
    let mut fork = parent.fork(parent.choice, holding);
    fork.preemptions = parent.preemptions;
    fork.resumed = parent.resumed;
    queues.sequences.insert(fork)
}

/// Removes a beam that no step in flight uses.
fn drop_beam(queues: &mut Queues, id: SequenceId) {
    if queues.is_folded(id) {
        queues.sequences.remove(id);
    } else {
        queues.leave(id, Exit::Ended);
    }
}

fn report_prefix(queues: &mut Queues, group: &BeamGroup, events: &mut Events) {
    for &id in &group.members {
        if let Some(report) = queues.sequences[id].prefix_report.take() {
            let first = group.choices.iter().find(|choice| choice.index == 0);
            events.extend(
                first.map(|choice| (choice.stream, Event::Prompt(PromptEvent::Prefix(report)))),
            );
        }
    }
}

/// Sends the answers, best first, and ends the group.
fn answer(queues: &mut Queues, group: BeamGroup, events: &mut Events) {
    let usage = queues.sequences[group.members[0]].usage();
    let (choices, members) = (group.choices, group.members);
    let answers = group.search.into_finished();
    for choice in choices {
        queues.by_stream.remove(&choice.stream);
        let Some(Hypothesis { answer, reason, .. }) = answers.get(choice.index as usize) else {
            queues.counts.finished_error += 1;
            events.push((choice.stream, Event::Failed(RequestError::TooFewAnswers)));
            continue;
        };
        match reason {
            FinishReason::Stop => queues.counts.finished_stop += 1,
            FinishReason::Length => queues.counts.finished_length += 1,
        }
        let completion_tokens = u32::try_from(answer.len()).expect("an answer fits the context");
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
    members.into_iter().for_each(|id| drop_beam(queues, id));
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
