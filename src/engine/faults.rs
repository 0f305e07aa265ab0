//! Bugs that the simulator injects to prove that its tests detect each of them.
//!
//! Every bug is one condition in the scheduler or the pool; it is always false in production. The conditions are not
//! behind a feature flag, so the simulated code is the shipped code.

/// A bug that the simulation must catch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InjectedFault {
    /// A fork writes into the block it shares.
    MissingCopyOnWrite,
    /// A preempted or ended sequence releases its blocks while a step in flight uses them.
    EarlyRelease,
    /// A block can be found in the prefix cache as soon as its first token is computed.
    HashOfPartBlock,
    /// Every request has the same hash root.
    SaltIgnored,
    /// A match may cover the whole prompt, so its last token is computed again into a shared block.
    FullHitKept,
    /// A request aborted in the queue still counts as waiting.
    QueuedAbortCountLost,
    /// An evicted block can still be found in the prefix cache.
    StaleHash,
    /// A row at the start of a block writes one slot too far.
    SlotOffByOne,
    /// A preempted sequence forgets the token that was in flight.
    PendingTokenLost,
    /// Penalties do not see the unread token.
    PenaltyWithoutPending,
    /// A feed slot is reused while a step in flight uses it.
    FeedSlotReusedEarly,
    /// The oldest block that is still inside the window is released.
    WindowBlockFreedEarly,
    /// A constrained row does not wait for its token, so it gets the mask of the previous token.
    MaskBeforeToken,
    /// Keys and values of a token that a constraint forces are assumed to be computed.
    ForcedTokenNotComputed,
    /// After a failed batch, sequences that share the blocks it should have filled go on.
    SharersKept,
    /// After a failed batch, what its sequences compute in a step in flight can still be found in the prefix cache.
    LaterBlocksKept,
    /// After a failed batch, sequences go on that share what other sequences computed from blocks never filled.
    IndirectSharersKept,
    /// Only the first 16 bytes of a salt count.
    SaltCutOff,
    /// With fixed chunks, a chunk is cut to what other sequences leave of the step.
    GridFollowsCompany,
    /// With fixed chunks, a preempted sequence recomputes its answer in chunks.
    AnswerRecomputedInChunks,
    /// With fixed chunks, a prefix hit may end inside a chunk or cover an answer.
    PartChunksShared,
    /// The most recently used block is evicted first.
    NewestEvicted,
    /// Of a sequence's blocks, the first are evicted first, so that the rest cannot be found.
    HeadEvictedFirst,
    /// A preempted sequence finds none of its blocks again.
    PreemptedNotCached,
    /// Admission leaves no block for the running sequences to grow.
    NoWatermark,
    /// A fork of a beam does not become a holder of its blocks, so they are free once its parent leaves.
    BeamParentFreedEarly,
    /// A fork of a beam gets the blocks of another beam.
    WrongBeamCopied,
    /// A beam that has ended also goes on.
    FinishedBeamRevived,
    /// The beams that are in flight when their request is aborted keep their blocks for ever.
    BeamBlocksLeaked,
    /// A block from host memory is uploaded a step after the one that reads it.
    RestoredLate,
    /// A block that a prompt shares may be evicted to make room for those that it restores.
    SharedBlockEvicted,
    /// A block that was evicted from host memory can still be found, though its slot holds another, maybe of another
    /// salt.
    StaleHostEntry,
    /// A slot of host memory gets a new block while the copy of the old one is in flight.
    HostSlotReusedEarly,
    /// A block can be found in host memory before its copy has been read.
    LeavingBlockFound,
    /// The form of a file is not compared, so one of another model is used.
    OtherModelRead,
    /// The checksum of a file is not compared, so a part-written file is used.
    PartFileRead,
    /// The token ids of a file are not compared, so one with the same hash but another text is used.
    OtherTextRead,
    /// A file that is gone when it is read counts as read.
    MissingFileRead,
    /// Rejected drafts count as computed, so the tokens in their places are not.
    RejectedDraftsComputed,
    /// A block that drafts fill can be found in the prefix cache before they are verified.
    DraftsHashed,
    /// All drafts of a step are verified with the noise of its first row.
    DraftNoiseOfFirstRow,
    /// An accepted draft does not end a choice.
    DraftAcceptedPastEnd,
    /// Two sequences that run at once get the same state slot.
    StateSlotShared,
    /// A preempted sequence starts again with the state that its slot has.
    StateKeptInPreemption,
    /// A fork overwrites the state that it shares.
    ForkedStateShared,
    /// A snapshot belongs to one block less than it was taken after.
    SnapshotOfOtherBlock,
    /// A snapshot may be evicted while a row is to read it.
    SnapshotEvictedEarly,
    /// After a failed batch, the snapshots that it should have written can still be found, and who uses them goes on.
    UnwrittenSnapshotKept,
    /// Blocks are restored from a colder tier, but not the state after them.
    StateNotRestored,
    /// The state that is restored from a colder tier is that of an earlier block, if there is one.
    StateOfOtherBlockRestored,
    /// A snapshot is written to a file while the step that computes it is in flight, and may fail.
    SnapshotWrittenEarly,
    /// A sequence goes on from the state after rejected drafts.
    RejectedStateKept,
    /// The token that replaces a rejected draft is reported with the logprobs of the row after it.
    RejectedLogprobs,
}

/// What the simulator injects; empty in production.
#[derive(Clone, Copy, Debug, Default)]
pub struct InjectedFaults {
    /// The injected bug.
    pub fault: Option<InjectedFault>,
    /// Every `host_rows_every`-th request needs host work between two tokens, as grammars do; 0 for none.
    pub host_rows_every: u64,
}

impl InjectedFaults {
    /// Whether this bug is injected.
    pub(super) fn has(self, fault: InjectedFault) -> bool {
        self.fault == Some(fault)
    }

    /// Whether this request needs host work between two tokens.
    pub(super) fn waits_for_host(self, request: u64) -> bool {
        self.host_rows_every > 0 && request.is_multiple_of(self.host_rows_every)
    }
}
