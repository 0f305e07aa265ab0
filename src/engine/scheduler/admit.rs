//! Admission of waiting sequences: first come, first served, each with its longest cached prefix.

use super::{BatchBuilder, PREEMPTIONS_MAX, Scheduler, Sequence};
use crate::engine::memory::Admission;
use crate::engine::request::{Progress, PromptEvent};
use crate::engine::sequence::{Order, SequenceId, StreamId};

/// One of so many blocks of a pool stays free for the running sequences to grow.
const SPARE_SHARE: u32 = 100;

impl Scheduler {
    /// What the first choices of requests that were admitted since the last call are told.
    pub fn take_admitted(&mut self) -> Vec<(StreamId, PromptEvent)> {
        std::mem::take(&mut self.admitted)
    }

    /// Admits waiting sequences in order while `max_num_seqs`, budget and blocks allow. No sequence overtakes the
    /// first that does not fit, because under steady arrivals that one would starve. Those that wait for files are
    /// overtaken.
    pub(super) fn admit(&mut self, builder: &mut BatchBuilder) {
        let mut reading = Vec::new();
        while let Some((order, id)) = self.next_waiting(&reading) {
            let has_seats = self.has_seats(self.beams.seats_needed(&self.queues, id))
                && self.queues.has_adapter_slot(id);
            if builder.tokens_left == 0 || !has_seats {
                break;
            }
            if self.waits_for_files(id) {
                reading.push(id);
                continue;
            }
            let Some(admission) = self.admission(id) else {
                break;
            };
            if self.waits_for_evicted(id, admission.matched) {
                reading.push(id);
                continue;
            }
            let matched = admission.matched * self.queues.limits.memory.block_size;
            if !self.queues.has_image_rows(id, matched) {
                break;
            }
            self.queues.waiting.remove(&order);
            self.take_prefix(id, &admission, builder);
            self.queues.seat(id);
            self.schedule_row(id, builder);
        }
        self.read_ahead();
    }

    /// The first waiting sequence that is none of these.
    fn next_waiting(&self, reading: &[SequenceId]) -> Option<(Order, SequenceId)> {
        self.queues
            .waiting
            .iter()
            .map(|(&order, &id)| (order, id))
            .find(|(_, id)| !reading.contains(id))
    }

    /// What the sequence takes, if all its tokens and its next one fit now; else `None`. One that was preempted too
    /// often has all blocks reserved that it may need.
    fn admission(&mut self, id: SequenceId) -> Option<Admission> {
        let matched = self.match_prefix(id);
        let sequence = &self.queues.sequences[id];
        let is_guarded = sequence.preemptions >= PREEMPTIONS_MAX;
        let tokens = if is_guarded {
            sequence.tokens_limit
        } else {
            self.beams.tokens_unfolded(&self.queues, id) + 1
        };
        let others = self.beams.blocks_of_others(&self.queues, id, tokens);
        let spare = (!self.queues.running.is_empty()).then_some(SPARE_SHARE);
        let holding = &sequence.holding;
        let blocks = self
            .queues
            .memory
            .room(holding, matched, tokens, &others, spare)?;
        Some(Admission {
            matched,
            known: sequence.tokens_known(),
            reserved: is_guarded.then_some(blocks),
        })
    }

    /// Number of leading blocks that are cached, with the state after them, on the device or in host memory.
    pub(super) fn match_prefix(&mut self, id: SequenceId) -> u32 {
        let reusable = self.queues.sequences[id].reusable();
        let Sequence {
            holding, tokens, ..
        } = &mut self.queues.sequences[id];
        self.queues.memory.match_prefix(holding, tokens, reusable)
    }

    /// Gives a sequence its cached blocks.
    fn take_prefix(&mut self, id: SequenceId, admission: &Admission, builder: &mut BatchBuilder) {
        let sequence = &mut self.queues.sequences[id];
        debug_assert!(
            sequence.exit.is_none() && sequence.in_flight == 0,
            "a waiting sequence is not in use"
        );
        let is_first = sequence.holding.cached.is_none();
        let moves = &mut builder.batch.moves;
        let before = moves.restores.len();
        self.queues
            .memory
            .take_prefix(id, &mut sequence.holding, admission, moves);
        let restores = moves.restores.len() - before;
        sequence.in_flight += u32::try_from(restores).expect("a chain has few blocks");
        sequence.resumed = sequence.preemptions > 0;
        if is_first {
            self.note_admission(id);
        }
    }

    /// Counts a request that is admitted for the first time.
    fn note_admission(&mut self, id: SequenceId) {
        let sequence = &mut self.queues.sequences[id];
        let cached = sequence.cached();
        let prompt = u64::from(sequence.prompt_len());
        self.round_robin.admitted(sequence.order.round);
        if sequence.request.report_admission {
            let seed = sequence.seed;
            self.admitted
                .push((sequence.choice.stream, PromptEvent::Admitted { seed }));
        }
        if sequence.request.report_progress {
            sequence.progress_reported = cached.all;
            let progress = Progress {
                cached: cached.all,
                processed: cached.all,
            };
            self.admitted
                .push((sequence.choice.stream, PromptEvent::Progress(progress)));
        }
        self.queues.counts.requests_dequeued += 1;
        self.queues.counts.prompt_tokens += prompt;
        self.queues.counts.prefix_queries += prompt;
        self.queues.counts.prefix_hits += u64::from(cached.all);
        self.queues.counts.prefix_hits_host += u64::from(cached.host);
        self.queues.counts.prefix_hits_disk += u64::from(cached.disk);
        self.explain_prefix(id);
    }
}
