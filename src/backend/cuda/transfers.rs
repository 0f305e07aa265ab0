//! Copies of KV blocks to and from host memory on a stream of their own, beside the steps.
//!
//! The stream of the steps only copies within device memory, between the pool and a ring of staging slots, which takes
//! a small part of a step's time. The copies between staging slots and pinned host memory take longer; they are on a
//! second stream and overlap with the steps. Each slot has an event per stream: a stream waits for the other one's last
//! use of the slot. No call here waits on the host, except for pinned memory that an upload still reads.

use super::driver::{Copies, Span};
use super::error::failed;
use crate::backend::BackendError;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use std::ops::Range;

/// Bytes of a staging slot: a millisecond of PCIe 4.0 x16, which hides the start of a copy.
const SLOT_BYTES: usize = 16 << 20;
/// One slot is filled while the other is drained; two more keep a save and a restore of one step apart.
const SLOTS: usize = 4;
const WAIT: sys::CUevent_wait_flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;

/// The copy stream and its buffers.
pub(super) struct Transfers {
    /// The stream of the steps, which the driver owns.
    steps: sys::CUstream,
    stream: sys::CUstream,
    slots: Vec<Slot>,
    /// The slot that is used next.
    next: usize,
    pinned: Vec<Pinned>,
}

/// Device memory that both streams use in turn.
#[derive(Clone, Copy)]
struct Slot {
    address: u64,
    /// After the last use by the steps' stream.
    by_steps: sys::CUevent,
    /// After the last use by the copy stream.
    by_copies: sys::CUevent,
}

/// A pinned buffer in host memory.
struct Pinned {
    memory: *mut u8,
    bytes: usize,
    /// After the last copy from or to it.
    event: sys::CUevent,
    /// Whether it holds copies that were not read yet.
    busy: bool,
}

#[allow(unsafe_code, reason = "foreign calls")]
impl Transfers {
    /// A copy stream beside the steps' stream. Its buffers are made when they are first needed.
    pub(super) fn new(steps: sys::CUstream) -> Result<Self, DriverError> {
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking)?;
        Ok(Self {
            steps,
            stream,
            slots: Vec::new(),
            next: 0,
            pinned: Vec::new(),
        })
    }

    /// Starts copying memory to one pinned buffer, in the order given and after all submitted steps.
    pub(super) fn copy_out(&mut self, spans: &[Span]) -> Result<Copies, BackendError> {
        let bytes = spans.iter().map(|span| span.bytes).sum();
        let index = self.pinned(bytes)?;
        self.make_slots()?;
        let mut start = 0;
        for part in parts(spans) {
            self.part_out(&part, index, start)
                .map_err(|error| failed("a copy of KV blocks", error))?;
            start += part.iter().map(|span| span.bytes).sum::<usize>();
        }
        self.record(index)?;
        self.pinned[index].busy = true;
        Ok(Copies {
            buffer: index,
            bytes,
        })
    }

    fn part_out(&mut self, part: &[Span], pinned: usize, start: usize) -> Result<(), DriverError> {
        let slot = self.take_slot();
        // SAFETY: the streams and events are alive. The slot has room for a part, and the pinned buffer for all of
        // them; nothing reads that before `event` of it.
        unsafe {
            result::stream::wait_event(self.steps, slot.by_copies, WAIT)?;
            let mut end = 0;
            for span in part {
                result::memcpy_dtod_async(
                    slot.address + end as u64,
                    span.address,
                    span.bytes,
                    self.steps,
                )?;
                end += span.bytes;
            }
            result::event::record(slot.by_steps, self.steps)?;
            result::stream::wait_event(self.stream, slot.by_steps, WAIT)?;
            let to = std::slice::from_raw_parts_mut(self.pinned[pinned].memory.add(start), end);
            result::memcpy_dtoh_async(to, slot.address, self.stream)?;
            result::event::record(slot.by_copies, self.stream)
        }
    }

    /// The event after copies.
    pub(super) fn event(&self, copies: &Copies) -> sys::CUevent {
        self.pinned[copies.buffer].event
    }

    /// The bytes of copies whose event has occurred.
    pub(super) fn take(&mut self, copies: &Copies) -> Vec<u8> {
        let pinned = &mut self.pinned[copies.buffer];
        pinned.busy = false;
        // SAFETY: the copies have arrived, and the buffer is written again only by later calls.
        unsafe { std::slice::from_raw_parts(pinned.memory, copies.bytes) }.to_vec()
    }

    /// Overwrites memory with the bytes, in the order given: after all submitted steps and before later ones.
    pub(super) fn copy_in(&mut self, spans: &[Span], bytes: &[&[u8]]) -> Result<(), BackendError> {
        let total = bytes.iter().map(|bytes| bytes.len()).sum::<usize>();
        debug_assert_eq!(
            total,
            spans.iter().map(|span| span.bytes).sum::<usize>(),
            "the spans have room for all"
        );
        let index = self.pinned(total)?;
        self.make_slots()?;
        let mut end = 0;
        for bytes in bytes {
            // SAFETY: the buffer has room for all bytes, and no copy reads it any more.
            unsafe {
                self.pinned[index]
                    .memory
                    .add(end)
                    .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            };
            end += bytes.len();
        }
        let mut start = 0;
        for part in parts(spans) {
            let end = start + part.iter().map(|span| span.bytes).sum::<usize>();
            self.part_in(&part, index, start..end)
                .map_err(|error| failed("an upload of KV blocks", error))?;
            start = end;
        }
        self.record(index)
    }

    fn part_in(
        &mut self,
        part: &[Span],
        pinned: usize,
        range: Range<usize>,
    ) -> Result<(), DriverError> {
        let slot = self.take_slot();
        // SAFETY: as in `part_out`; the pinned buffer is written again only after its `event`.
        unsafe {
            result::stream::wait_event(self.stream, slot.by_steps, WAIT)?;
            let from = std::slice::from_raw_parts(
                self.pinned[pinned].memory.add(range.start),
                range.len(),
            );
            result::memcpy_htod_async(slot.address, from, self.stream)?;
            result::event::record(slot.by_copies, self.stream)?;
            result::stream::wait_event(self.steps, slot.by_copies, WAIT)?;
            let mut start = 0;
            for span in part {
                result::memcpy_dtod_async(
                    span.address,
                    slot.address + start,
                    span.bytes,
                    self.steps,
                )?;
                start += span.bytes as u64;
            }
            result::event::record(slot.by_steps, self.steps)
        }
    }

    /// The slot that was used longest ago.
    fn take_slot(&mut self) -> Slot {
        let slot = self.slots[self.next];
        self.next = (self.next + 1) % self.slots.len();
        slot
    }

    fn make_slots(&mut self) -> Result<(), BackendError> {
        while self.slots.len() < SLOTS {
            let slot =
                Self::make_slot().map_err(|error| failed("staging memory for KV blocks", error))?;
            self.slots.push(slot);
        }
        Ok(())
    }

    fn make_slot() -> Result<Slot, DriverError> {
        // SAFETY: plain allocations in the current context.
        unsafe {
            let address = result::malloc_sync(SLOT_BYTES)?;
            Ok(Slot {
                address,
                by_steps: make_event()?,
                by_copies: make_event()?,
            })
        }
    }

    /// Records the event of a pinned buffer after all copies so far.
    fn record(&self, index: usize) -> Result<(), BackendError> {
        // SAFETY: event and stream are alive.
        let recorded = unsafe { result::event::record(self.pinned[index].event, self.stream) };
        recorded.map_err(|error| failed("an event", error))
    }

    /// A pinned buffer of at least this size that is not in use. A smaller one is replaced.
    fn pinned(&mut self, bytes: usize) -> Result<usize, BackendError> {
        // SAFETY: the event is alive.
        let is_free =
            |pinned: &Pinned| !pinned.busy && unsafe { result::event::query(pinned.event) }.is_ok();
        if let Some(index) = self
            .pinned
            .iter()
            .position(|pinned| pinned.bytes >= bytes && is_free(pinned))
        {
            return Ok(index);
        }
        let bytes = bytes.max(1).next_power_of_two();
        // SAFETY: plain allocations in the current context.
        let made = unsafe { result::malloc_host(bytes, 0) }.and_then(|memory| {
            Ok(Pinned {
                memory: memory.cast(),
                bytes,
                event: make_event()?,
                busy: false,
            })
        });
        let made = made.map_err(|error| failed("pinned memory", error))?;
        let Some(index) = self.pinned.iter().position(is_free) else {
            self.pinned.push(made);
            return Ok(self.pinned.len() - 1);
        };
        std::mem::replace(&mut self.pinned[index], made).free();
        Ok(index)
    }

    /// Frees everything, after all submitted copies.
    pub(super) fn free(&mut self) {
        // SAFETY: made here, and no longer in use once the stream was waited for; the steps' stream is idle.
        unsafe {
            _ = result::stream::synchronize(self.stream);
            for slot in self.slots.drain(..) {
                _ = result::free_sync(slot.address);
                _ = result::event::destroy(slot.by_steps);
                _ = result::event::destroy(slot.by_copies);
            }
            self.pinned.drain(..).for_each(Pinned::free);
            _ = result::stream::destroy(self.stream);
        }
    }
}

impl Pinned {
    #[allow(unsafe_code, reason = "frees memory")]
    fn free(self) {
        // SAFETY: allocated by `Transfers::pinned`; no copy is in flight.
        unsafe {
            _ = result::free_host(self.memory.cast());
            _ = result::event::destroy(self.event);
        }
    }
}

fn make_event() -> Result<sys::CUevent, DriverError> {
    result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
}

/// The spans in parts that fit a slot each; a span at a border is split.
fn parts(spans: &[Span]) -> Vec<Vec<Span>> {
    let (mut parts, mut left) = (Vec::new(), 0);
    for &(mut span) in spans {
        while span.bytes > 0 {
            if left == 0 {
                parts.push(Vec::new());
                left = SLOT_BYTES;
            }
            let bytes = span.bytes.min(left);
            parts
                .last_mut()
                .expect("a part was just added")
                .push(Span { bytes, ..span });
            span = Span {
                address: span.address + bytes as u64,
                bytes: span.bytes - bytes,
            };
            left -= bytes;
        }
    }
    parts
}

#[cfg(test)]
mod tests;
