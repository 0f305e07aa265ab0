//! Bugs that the simulator injects, to prove that its tests find each of them.
//!
//! Every bug is one condition in the scheduler or the pool, false in the product. The set is here, and not behind a
//! feature, so that the code that is simulated is the code that ships.

/// A bug that the simulation must catch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InjectedFault {
    /// A fork writes into the block it shares.
    MissingCopyOnWrite,
    /// A preempted or ended sequence gives its blocks back while a step in flight names them.
    EarlyRelease,
    /// A block becomes matchable when its first token is computed.
    HashOfPartBlock,
    /// Every request has the same hash root.
    SaltIgnored,
    /// A match may cover the whole prompt, so its last token is computed again into a shared block.
    FullHitKept,
    /// A request aborted in the queue still counts as waiting.
    QueuedAbortCountLost,
    /// An evicted block stays matchable.
    StaleHash,
    /// A row at the start of a block goes one slot too far.
    SlotOffByOne,
    /// A preempted sequence forgets the token that was in flight.
    PendingTokenLost,
    /// Penalties do not see the unread token.
    PenaltyWithoutPending,
    /// A feed slot is handed on while a step in flight names it.
    FeedSlotReusedEarly,
    /// A window gives up the oldest block it still sees.
    WindowBlockFreedEarly,
    /// A constrained row does not wait for its token, so its mask is that of the token before.
    MaskBeforeToken,
    /// Keys and values of a token that a constraint forces are taken for computed.
    ForcedTokenNotComputed,
}

/// What the simulator injects; nothing in the product.
#[derive(Clone, Copy, Debug, Default)]
pub struct InjectedFaults {
    /// The injected bug.
    pub fault: Option<InjectedFault>,
    /// Every so many requests one that needs the host between two tokens, as grammars do; 0 for none.
    pub host_rows_every: u64,
}

impl InjectedFaults {
    /// Whether this bug is injected.
    pub(super) fn has(self, fault: InjectedFault) -> bool {
        self.fault == Some(fault)
    }

    /// Whether this request needs the host between two tokens.
    pub(super) fn waits_for_host(self, request: u64) -> bool {
        self.host_rows_every > 0 && request.is_multiple_of(self.host_rows_every)
    }
}
