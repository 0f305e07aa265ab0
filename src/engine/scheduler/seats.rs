//! Whether there is a seat for another sequence.

use super::Scheduler;

impl Scheduler {
    /// Whether one more sequence may run.
    pub(super) fn has_seat(&self) -> bool {
        self.has_seats(1)
    }

    /// Whether so many more sequences may run.
    pub(super) fn has_seats(&self, count: usize) -> bool {
        let count = count + self.beams.seats_kept(&self.queues);
        let is_within =
            self.queues.running.len() + count <= self.queues.limits.max_num_seqs as usize;
        is_within
            && count <= self.queues.feed_slots.len()
            && self.queues.memory.has_state_slots(count)
    }

    /// Whether a sequence waits, and there is a seat for it.
    pub(super) fn may_admit(&self) -> bool {
        !self.queues.waiting.is_empty() && self.has_seat()
    }
}
