//! A virtual queue pair: what it is made with, its state, its queues and its credit (section 4.1).

pub(crate) mod credit;
pub(crate) mod phase;
pub(crate) mod recv_ring;
pub(crate) mod send_ring;
pub(crate) mod seq;
pub(crate) mod sq_entry;

use alloc::boxed::Box;
use core::num::NonZeroU16;

use elver_control::NodeRecord;
use elver_verbs::{Class, Dest, Gid, Policy, Time, Via, VqpState, WcStatus};

use crate::client::accept::Acceptance;
use crate::ids::{LaneIx, LinkId, MaybeVqp, PeerId};
use crate::keep_alive::Watched;
use crate::memory::mr::LocalHit;
use crate::memory::mr_store::RemoteMr;
use crate::messaging::backlog::Backlog;
use crate::pool::lanes::Stands;
use crate::rc::suspect::Suspect;
use crate::vqp::credit::Credit;
use crate::vqp::phase::Phase;
use crate::vqp::recv_ring::RecvRing;
use crate::vqp::send_ring::SendRing;
use crate::vqp::seq::SendSeq;
use crate::{ClientId, VqpId};

/// What a VQP is created with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VqpInit {
    /// Priority.
    pub class: Class,
    /// Most outstanding send WRs.
    pub max_send_wr: u32,
    /// Most outstanding receive WRs.
    pub max_recv_wr: u32,
    /// Whether every send WR is signalled.
    pub sq_sig_all: bool,
    /// Whether a SEND completes only when a receive has taken it, whatever its length: its receiver reads
    /// it, which costs a round trip more. Such a VQP sends nothing inline.
    pub confirm_sends: bool,
}

impl Default for VqpInit {
    fn default() -> VqpInit {
        VqpInit {
            class: Class::Low,
            max_send_wr: 128,
            max_recv_wr: 128,
            sq_sig_all: false,
            confirm_sends: false,
        }
    }
}

/// A VQP as `elver status` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VqpInfo {
    /// Its id.
    pub vqp: VqpId,
    /// Its owner.
    pub client: ClientId,
    /// Its state.
    pub state: VqpState,
    /// The port that it is bound to.
    pub bound: Option<u16>,
    /// The peer and its port.
    pub peer: Option<(Gid, u16)>,
    /// What backs it now.
    pub via: Option<Via>,
    /// Priority.
    pub class: Class,
    /// WRs posted and not completed.
    pub outstanding: u32,
    /// Send WRs that were posted to it since it was made, modulo 2^32.
    pub sends: u32,
    /// Of these, the ones that have ended, signalled or not.
    pub sends_done: u32,
    /// Receives that were posted to it since it was made, modulo 2^32.
    pub receives: u32,
    /// Of these, the ones that have ended: that took messages, or were flushed.
    pub receives_done: u32,
    /// Times that it moved between DC and RC, or to another RC QP.
    pub transfers: u32,
}

/// Why a VQP's WRs stay in its ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// They do not.
    Nothing,
    /// A look-up of the next WR's remote region.
    Mr,
    /// A send slot for the next message's header.
    Slot,
    /// Tokens of its class.
    Tokens,
    /// A receiver that wants more messages.
    Credit,
}

/// A WR that is not posted for a fault of its own, and how it ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub(crate) seq: SendSeq,
    pub(crate) status: WcStatus,
}

/// A virtual QP.
#[derive(Debug)]
pub(crate) struct Vqp {
    pub(crate) id: VqpId,
    pub(crate) client: ClientId,
    /// Its place in its client's list.
    pub(crate) client_at: u32,
    pub(crate) class: Class,
    pub(crate) sig_all: bool,
    pub(crate) confirm_sends: bool,
    pub(crate) phase: Phase,
    pub(crate) via: Option<Via>,
    /// The port that it is bound to.
    pub(crate) bound: Option<NonZeroU16>,
    /// The peer that it is connected to, if it is. While it is set, the peer counts it.
    pub(crate) peer: Option<PeerId>,
    /// The VQPs before and behind it in the list of its peer's.
    pub(crate) beside: [MaybeVqp; 2],
    /// The port there that it was connected to.
    pub(crate) peer_port: Option<NonZeroU16>,
    /// The VQP there that messages go to; without one they go to the port.
    pub(crate) peer_vqp: MaybeVqp,
    /// Where it posts, if it is connected and has a lane. It may change only while nothing is on the
    /// lane: `inflight` is 0. While it is set, the lane counts it.
    pub(crate) lane: Option<LaneIx>,
    /// The peer's DCT, for a lane of a DCI; none on an RC QP.
    pub(crate) dest: Option<Dest>,
    pub(crate) sq: SendRing,
    pub(crate) rq: RecvRing,
    /// Messages being read into its receives, or written to one that is not at hand.
    pub(crate) reads: u32,
    /// Physical WRs on the lane.
    pub(crate) inflight: u32,
    pub(crate) wait: Wait,
    /// The messages that its receiver wants.
    pub(crate) credit: Credit,
    /// How it was connected.
    pub(crate) policy: Policy,
    /// Its own RC QP, made or being made.
    pub(crate) lease: Option<LinkId>,
    /// It stands in its lane's list of ready VQPs.
    pub(crate) ready: bool,
    /// Its lane failed through another's fault: from `sq.posted` on its WRs are posted again.
    pub(crate) rewound: bool,
    /// WRs of its were flushed, and whether they were executed is being found out.
    pub(crate) unsure: bool,
    /// Whether RC QPs fail for one of its WRs.
    pub(crate) suspect: Suspect,
    /// The WR that is not posted for a fault of its own. Those before it go first, and those behind it are
    /// flushed.
    pub(crate) fault: Option<Fault>,
    /// Bytes that it may post ahead of its next turn on a lane that others wait for.
    pub(crate) deficit: i64,
    /// Bytes of a message that its receiver's buffers hold. What is shorter than `read_from` is copied to
    /// them, and the rest is read by the receiver.
    pub(crate) room: u32,
    pub(crate) read_from: u32,
    /// Its `qconnect` that waits, of all that the core was ever asked for: what an older one waited for is
    /// known as such, also if its VQP is gone and had the same id.
    pub(crate) attempt: u32,
    /// Secret of this connection, which names its messages besides their numbers: only the peer that
    /// got one can answer to it.
    pub(crate) nonce: u32,
    /// In the error state, with nothing on its lane: nobody reads its long messages after this, even
    /// if the peer does not answer.
    pub(crate) read_until: Option<Time>,
    /// Token of the pending `qconnect`.
    pub(crate) token: u64,
    pub(crate) transfers: u32,
    /// Tag of the record of the node that it is connected to, as that was then, unless nothing was known of
    /// it ([`Watched::Unknown`]).
    pub(crate) peer_tag: u16,
    /// How it is looked after, so that it fails when its peer goes.
    pub(crate) watched: Watched,
    /// It stands among those that were connected since the last look, and once, however often it was.
    pub(crate) newcomer: bool,
    /// Messages that wait for receives.
    pub(crate) backlog: Option<Box<Backlog>>,
    /// For an accepted VQP.
    pub(crate) accepted: Option<Acceptance>,
    /// Local region used last.
    pub(crate) local: LocalHit,
    /// Remote region used last: its rkey and what is known of it. Apart, they leave no room unused.
    pub(crate) remote_key: u32,
    pub(crate) remote: RemoteMr,
}

impl Vqp {
    /// Whether a client may name it.
    #[inline]
    pub(crate) fn is_of(&self, client: ClientId) -> bool {
        self.client == client && self.phase != Phase::Destroyed
    }

    /// Whether it is tied to nothing that a new connection would have to let go.
    #[inline]
    pub(crate) fn is_fresh(&self) -> bool {
        let fresh = self.phase != Phase::Connecting
            && self.via.is_none()
            && self.peer.is_none()
            && self.lane.is_none()
            && self.lease.is_none();
        debug_assert!(!fresh || self.accepted.is_none() && self.dest.is_none());
        fresh
    }

    /// Sets what messages its peer has room for, of which that is known, and which of them it reads. Where
    /// nothing was ever known of the peer, it is taken to be as this node, which has `own` room and copies
    /// messages of up to `eager_max`.
    #[inline]
    pub(crate) fn measure_room(&mut self, peer: Option<&NodeRecord>, (own, eager_max): (u32, u32)) {
        let room = peer.map_or(own, |peer| peer.terms.room_bytes());
        (self.room, self.read_from) =
            (room, if self.confirm_sends { 0 } else { room.min(eager_max) + 1 });
    }

    /// Remembers no remote region.
    pub(crate) const NO_REMOTE: (u32, RemoteMr) = (
        0,
        RemoteMr {
            addr: 0,
            length: 0,
            access: elver_verbs::AccessFlags::empty(),
            until: Time::ZERO,
        },
    );

    /// Where its messages go, as their headers say it: a port and no VQP, or a VQP and no port.
    #[inline]
    pub(crate) fn destination(&self) -> (u16, u32) {
        match self.peer_vqp.get() {
            Some(vqp) => (0, vqp.0),
            None => (self.peer_port(), 0),
        }
    }

    /// The port there that it was connected to, as who asks is told it: 0 if that was none.
    #[inline]
    pub(crate) fn peer_port(&self) -> u16 {
        self.peer_port.map_or(0, NonZeroU16::get)
    }

    /// Names a message of its to its receiver.
    #[inline]
    pub(crate) fn cookie(&self, seq: SendSeq) -> u64 {
        u64::from(self.nonce) << 32 | u64::from(seq.bits())
    }

    /// Whether it is of a class, and connected without a lane.
    pub(crate) fn is_laneless(&self, class: Class) -> bool {
        self.class == class && self.lane.is_none() && self.phase.is_connected()
    }

    /// It waits for its turn from now on: the lane on which it does, unless it has nothing to post or waits already.
    pub(crate) fn wait_for_lane(&mut self) -> Option<LaneIx> {
        let lane = self.lane?;
        if self.ready || !self.may_post() || self.sq.unposted() == 0 {
            return None;
        }
        self.ready = true;
        Some(lane)
    }

    /// It stands on none of its lane's lists any longer; on which it did.
    pub(crate) fn leave_lists(&mut self) -> Stands {
        let ready = core::mem::take(&mut self.ready);
        Stands { ready, rewound: core::mem::take(&mut self.rewound) }
    }

    /// The WRs from the first that is not done on wait to be posted again: how many were posted, unless they do already.
    pub(crate) fn rewind(&mut self) -> Option<u32> {
        if core::mem::replace(&mut self.rewound, true) {
            return None;
        }
        let count = self.sq.posted.since(self.sq.done);
        self.sq.posted = self.sq.done;
        Some(count)
    }

    /// Whether it may post what waits.
    #[inline]
    pub(crate) fn may_post(&self) -> bool {
        self.phase == Phase::Connected && self.wait == Wait::Nothing && self.lane.is_some()
    }
}
