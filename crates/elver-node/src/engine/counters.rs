use elver_portal::Violation;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)+) => {
        /// What the engine has done and seen. Each only grows.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub(crate) struct EngineCounters {
            $($(#[$doc])* pub(crate) $name: u64,)+
        }

        impl EngineCounters {
            /// Every counter by name.
            pub(crate) fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),+].into_iter()
            }
        }
    };
}

counters! {
    /// Sessions that began.
    sessions_opened,
    /// Sessions that ended, however they did.
    sessions_ended,
    /// Sessions that ended because the process closed or died.
    sessions_closed,
    /// Processes that were turned away: quotas, versions, want of memory.
    sessions_rejected,
    /// Processes that were turned away since those of their user connect too often.
    visits_refused,
    /// Processes that were turned away since nobody is known to pay for them, and many such were looked at.
    visits_unknown,
    /// Processes that connected and said nothing.
    greetings_missed,
    /// Connections that could not be accepted, for want of descriptors.
    accepts_failed,
    /// Sessions that ended because memory that they share with the node could not be had any more:
    /// they had given it back.
    sessions_lost_memory,
    /// Sessions that ended because their process stood still while it reached for memory that was taken back.
    direct_stuck,
    /// Commands.
    commands,
    /// Commands that were refused.
    commands_refused,
    /// Send WRs taken from rings.
    sends,
    /// Receives taken from rings.
    receives,
    /// WRs that were refused when they were posted.
    posts_refused,
    /// Connects that asked for a leased queue pair, and found no room for one here or at the peer.
    leases_refused,
    /// Those whose peer refused one as more than this node's share.
    leases_refused_peer,
    /// Completions handed out.
    completions,
    /// Messages sent to wake a process.
    wakes,
    /// Such messages that the system did not take, and that went again.
    wakes_failed,
    /// Times that the engine slept.
    sleeps,
    /// Sessions ended for a head of a ring that cannot be.
    violations_head,
    /// For an entry with an impossible length.
    violations_slots,
    /// For an entry that was not written whole.
    violations_torn,
    /// For an entry of an unknown kind.
    violations_kind,
    /// For an entry with an invalid field.
    violations_field,
    /// For a message on the socket that has no place there.
    violations_message,
    /// For waking the engine again and again while it was awake.
    violations_wakes,
}

impl EngineCounters {
    pub(super) fn violation(&mut self, violation: &Violation) {
        *match violation {
            Violation::Head => &mut self.violations_head,
            Violation::Slots { .. } => &mut self.violations_slots,
            Violation::Torn => &mut self.violations_torn,
            Violation::Kind { .. } => &mut self.violations_kind,
            Violation::Field { .. } => &mut self.violations_field,
        } += 1;
    }
}
