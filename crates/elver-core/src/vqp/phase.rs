use elver_verbs::VqpState;

/// How far a VQP is between its creation and its end.
///
/// `qconnect` leads from `Idle`, `Failing` and `Failed` by `Connecting`, or at once, to `Connected`, what
/// fails to `Failing`, the first WR that is told to have failed to `Failed`; `destroy` leads from anywhere to
/// `Destroyed`, and nothing leads away from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// It is connected to nobody.
    Idle,
    /// A `qconnect` is pending.
    Connecting,
    /// It posts what is posted to it.
    Connected,
    /// Connected. It goes to another lane once nothing of its is on this one, and posts nothing before
    /// (section 4.6).
    Moving,
    /// It has failed, and no WR of its was told to have: those that were executed before complete with
    /// success.
    Failing,
    /// It has failed, and a WR of its was told to have: all behind it are flushed.
    Failed,
    /// Its client is done with it, and hears of nothing: it goes when nothing of its is on a lane, or with
    /// a receiver.
    Destroyed,
}

impl Phase {
    /// A WR of its was told to have failed.
    pub(crate) fn told_failure(&mut self) {
        match self {
            Phase::Failing => *self = Phase::Failed,
            Phase::Failed | Phase::Destroyed => {}
            _ => bug!("a WR has failed, and its VQP has not"),
        }
    }

    /// The state that its client sees.
    pub(crate) fn state(self) -> VqpState {
        match self {
            Phase::Idle => VqpState::Idle,
            Phase::Connecting => VqpState::Connecting,
            Phase::Connected | Phase::Moving => VqpState::Connected,
            Phase::Failing | Phase::Failed | Phase::Destroyed => VqpState::Error,
        }
    }

    /// Whether it has a peer that it may talk to.
    #[inline]
    pub(crate) fn is_connected(self) -> bool {
        matches!(self, Phase::Connected | Phase::Moving)
    }

    /// Whether it posts nothing any more: what it holds is flushed.
    #[inline]
    pub(crate) fn is_over(self) -> bool {
        matches!(self, Phase::Failing | Phase::Failed | Phase::Destroyed)
    }

    /// Whether its WRs end otherwise than in success, told or not, whatever became of them.
    #[inline]
    pub(crate) fn flushes(self) -> bool {
        matches!(self, Phase::Failed | Phase::Destroyed)
    }
}
