use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::hash::Hasher;

use elver_control::NodeRecord;
use elver_verbs::{Ah, Class, Dest, Gid, Time};
use hashbrown::HashMap;
use rustc_hash::FxSeededState;
use siphasher::sip::SipHasher13;

use crate::VqpId;
use crate::ids::{CallId, LaneIx, MaybeVqp, OpId, PeerId};
use crate::rc::back_off::BackOff;
use crate::rc::heat::Heat;
use crate::slots::Slots;
use elver_random::Rng;

/// Places beyond those that may be in use: for nodes whose messages are refused since there is none.
const SPARE: u32 = 64;

/// The nodes that this one knows: the DCCache (section 4.2), with what is on the way to it.
///
/// At most as many as it was made for. Those that no VQP is connected to give way to others, the
/// least recently used first.
#[derive(Debug)]
pub(crate) struct Peers {
    pub(crate) slots: Slots<PeerId, Peer>,
    by_gid: HashMap<Gid, PeerId, FxSeededState>,
    /// Peers that nobody uses, with the stamp that they got then, oldest first. Entries whose peer
    /// has another stamp now mean nothing.
    idle: VecDeque<(PeerId, u64)>,
    stamp: u64,
    /// Keys the choice of lanes, so that nobody can aim many peers at one.
    lane_key: u64,
    /// So many may be in use.
    limit: u32,
}

/// What a place among the peers is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// To be in use.
    Own,
    /// To hear of a message that it has sent, if no more.
    Spare,
}

/// A node.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) gid: Gid,
    /// Spreads peers over lanes.
    pub(crate) hash: u64,
    /// Its address at the device, made when it is first needed.
    pub(crate) ah: Option<Ah>,
    /// What must be known to reach it over DC.
    pub(crate) record: Option<NodeRecord>,
    /// The last record that was known, also when that is forgotten: another one means that the peer
    /// has started anew.
    pub(crate) last: Option<NodeRecord>,
    /// Its tag.
    pub(crate) tag: Option<u16>,
    /// The record before that one. The peer has started anew since: who still tells it is late.
    pub(crate) before: Option<NodeRecord>,
    /// Whether that one is being asked if it is there after all.
    pub(crate) asked_past: bool,
    /// VQPs connected to it, and the one that was connected last: the head of their list.
    pub(crate) vqps: u32,
    pub(crate) last_vqp: MaybeVqp,
    /// Of these VQPs, the ones that its messages made.
    pub(crate) accepted: u32,
    /// Reasons besides VQPs not to forget it: it is a meta server, is this node, or has an RC QP;
    /// operations of the core's own are under way to it.
    pub(crate) pins: u32,
    /// Messages of its that are being read.
    pub(crate) reads: u32,
    /// Lanes of the shared RC QPs to it that are connected, by class.
    pub(crate) rc: [Option<LaneIx>; 2],
    /// How much the VQPs of each class talk to it.
    pub(crate) heat: [Heat; 2],
    /// When it may be asked for a link that nobody waits for.
    pub(crate) back_off: BackOff,
    /// Where it takes control messages, also when its record is forgotten: QPN and Q_Key.
    pub(crate) control: Option<(u32, u32)>,
    /// When a packet last caused a look-up of it.
    pub(crate) refreshed: Option<Time>,
    /// It is said to be gone or to be another, or has not answered there: who connects asks a meta server first.
    pub(crate) doubted: bool,
    /// Operations posted to it, and their bytes.
    pub(crate) ops: u64,
    pub(crate) bytes: u64,
    /// Its look-up at a meta server.
    pub(crate) lookup: PeerLookup,
    /// Who waits for that.
    pub(crate) waiting: Vec<Waiter>,
    stamp: u64,
}

/// Where the look-up of a peer stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerLookup {
    /// There is none.
    None,
    /// It waits for its turn.
    Queued,
    /// The peer itself is asked, over UD, by this call.
    Asked(CallId),
    /// An operation does it.
    Running {
        /// The operation.
        op: OpId,
        /// Meta servers that were asked, this one included.
        tried: u32,
        /// Index of the one that is being asked.
        server: u32,
        /// It is given up then.
        deadline: Time,
        /// The core was late when it last looked at that, and waits once more.
        late: bool,
    },
    /// It has ended, and who waits is told next.
    Ended,
}

impl PeerLookup {
    /// When it is given up, if it runs.
    pub(crate) fn deadline(self) -> Option<Time> {
        match self {
            PeerLookup::Running { deadline, .. } => Some(deadline),
            _ => None,
        }
    }
}

/// Who waits for a peer's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiter {
    /// A VQP that connects.
    Vqp {
        /// The VQP.
        vqp: VqpId,
        /// Which `qconnect` of its.
        attempt: u32,
    },
    /// A `warm` call.
    Warm(u32),
    /// The look-up of a region of the peer's.
    Region {
        /// Its key.
        rkey: u32,
        /// Whose turn it has.
        account: u64,
    },
    /// VQPs of a class that have lost their lane to the peer.
    Lane(Class),
    /// A VQP that holds a message which is to be read from the peer.
    Reader(VqpId),
    /// What the peer is to be told.
    Notes,
}

impl Peers {
    pub(crate) fn new(limit: u32, rng: &mut Rng) -> Peers {
        Peers {
            slots: Slots::new(limit.saturating_add(SPARE)),
            by_gid: HashMap::with_hasher(FxSeededState::with_seed(rng.next_u64() as usize)),
            idle: VecDeque::new(),
            stamp: 0,
            lane_key: rng.next_u64(),
            limit,
        }
    }

    /// Whether more are remembered than may be in use, and nobody uses this one.
    pub(crate) fn is_spare(&self, peer: PeerId) -> bool {
        self.slots.len() > self.limit && self.get(peer).is_some_and(|peer| peer.vqps == 0)
    }

    /// Has one that nobody uses give way, if the places of a kind are taken; its address handle. None if there is room
    /// without that, or none does.
    pub(crate) fn make_room(&mut self, place: Place) -> Option<Option<Ah>> {
        let taken = self.slots.len() >= self.limit;
        let spare = place == Place::Spare && self.slots.len() < self.limit.saturating_add(SPARE);
        // Those that are spare are in use only as long as they are being told.
        if !taken || (spare && self.idle.is_empty()) { None } else { Some(self.evict()?.ah) }
    }

    #[inline]
    pub(crate) fn get(&self, peer: PeerId) -> Option<&Peer> {
        self.slots.get(peer)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, peer: PeerId) -> Option<&mut Peer> {
        self.slots.get_mut(peer)
    }

    #[inline]
    pub(crate) fn find(&self, gid: &Gid) -> Option<PeerId> {
        self.by_gid.get(gid).copied()
    }

    /// Takes in the peer of a GID that has none. None when all places are taken.
    pub(crate) fn insert(&mut self, gid: Gid, place: Place) -> Option<PeerId> {
        if place == Place::Own && self.slots.len() >= self.limit {
            return None;
        }
        let mut hasher = SipHasher13::new_with_keys(self.lane_key, 0);
        hasher.write(&gid.0);
        let hash = hasher.finish();
        let id = self.slots.insert_in_turn(Peer {
            gid,
            hash,
            ah: None,
            record: None,
            last: None,
            tag: None,
            before: None,
            asked_past: false,
            vqps: 0,
            last_vqp: MaybeVqp::default(),
            pins: 0,
            reads: 0,
            rc: [None; 2],
            heat: [Heat::default(); 2],
            back_off: BackOff::default(),
            accepted: 0,
            control: None,
            refreshed: None,
            doubted: false,
            ops: 0,
            bytes: 0,
            lookup: PeerLookup::None,
            waiting: Vec::new(),
            stamp: 0,
        })?;
        self.by_gid.insert(gid, id);
        self.rest(id);
        Some(id)
    }

    /// To be called when a peer may have become one that nobody uses, or was used.
    pub(crate) fn rest(&mut self, peer: PeerId) {
        let Some(entry) = self.slots.get_mut(peer) else {
            return bug!("a peer that is gone rests");
        };
        if !entry.is_idle() {
            return;
        }
        self.stamp += 1;
        entry.stamp = self.stamp;
        self.idle.push_back((peer, self.stamp));
        if self.idle.len() > 2 * self.slots.len() as usize + 16 {
            let slots = &self.slots;
            let valid = |(id, stamp): &(PeerId, u64)| {
                slots.get(*id).is_some_and(|peer| peer.is_idle() && peer.stamp == *stamp)
            };
            self.idle.retain(valid);
        }
    }

    /// Forgets a peer of which nothing was ever known, unless somebody uses it. Returns whether it
    /// went, and its address handle.
    pub(crate) fn forget_stranger(&mut self, peer: PeerId) -> Option<Option<Ah>> {
        self.slots.get(peer).filter(|entry| entry.is_idle() && entry.last.is_none())?;
        let entry = self.slots.remove(peer)?;
        self.by_gid.remove(&entry.gid);
        Some(entry.ah)
    }

    fn evict(&mut self) -> Option<Peer> {
        while let Some((id, stamp)) = self.idle.pop_front() {
            if self.slots.get(id).is_some_and(|peer| peer.is_idle() && peer.stamp == stamp) {
                let peer = self.slots.remove(id)?;
                self.by_gid.remove(&peer.gid);
                return Some(peer);
            }
        }
        None
    }

    pub(crate) fn bytes(&self) -> u64 {
        let map = self.by_gid.capacity() * (size_of::<(Gid, PeerId)>() + 1);
        let idle = self.idle.capacity() * size_of::<(PeerId, u64)>();
        let waiting = |(_, peer): (PeerId, &Peer)| peer.waiting.capacity() * size_of::<Waiter>();
        let waiting: usize = self.slots.iter().map(waiting).sum();
        self.slots.bytes() + (map + idle + waiting) as u64
    }
}

impl Peer {
    fn is_idle(&self) -> bool {
        self.vqps == 0 && self.pins == 0 && self.lookup == PeerLookup::None
    }

    /// Whether it is being looked up, or waits for its turn.
    pub(crate) fn is_looked_up(&self) -> bool {
        self.lookup != PeerLookup::None
    }

    /// Its record, if nothing speaks against that.
    pub(crate) fn sure_record(&self) -> Option<&NodeRecord> {
        self.record.as_ref().filter(|_| !self.doubted)
    }

    /// What the peer's record is, if somebody says that it is this one: nobody is again what he was.
    pub(crate) fn news(&self, record: NodeRecord) -> NodeRecord {
        self.last.filter(|_| self.before == Some(record)).unwrap_or(record)
    }

    /// Takes note of a record that is the peer's now. Returns whether it has started anew.
    pub(crate) fn hear(&mut self, record: NodeRecord) -> bool {
        let anew = self.last.is_some_and(|last| last != record);
        if anew {
            self.before = self.last;
        }
        self.set_last(record);
        anew
    }

    /// Takes a record over, or forgets it.
    pub(crate) fn set_record(&mut self, record: Option<NodeRecord>) {
        let control = |record: NodeRecord| (record.control_qpn, record.control_qkey());
        self.control = record.map(control).or(self.control);
        if let Some(record) = record {
            self.set_last(record);
        }
        self.doubted &= record.is_none();
        self.record = record;
    }

    fn set_last(&mut self, record: NodeRecord) {
        (self.last, self.tag) = (Some(record), Some(record.tag()));
    }

    /// Where WRs over a stream of a DCI go; none before its record and its address are there.
    pub(crate) fn dc_dest(&self, stream: u16) -> Option<Dest> {
        let (record, ah) = (self.record?, self.ah?);
        Some(Dest::Dc {
            ah,
            remote_dctn: record.dctn,
            dc_access_key: record.dc_key,
            stream_id: stream,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(n: u8) -> Gid {
        Gid([n; 16])
    }

    #[test]
    fn the_least_recently_used_gives_way_and_the_used_stay() {
        let mut rng = Rng::new(3);
        let mut peers = Peers::new(3, &mut rng);
        let [a, b, c] = [1, 2, 3].map(|n| peers.insert(gid(n), Place::Own).unwrap());
        peers.get_mut(a).unwrap().vqps = 1;
        peers.rest(b);
        assert_eq!(peers.insert(gid(4), Place::Own), None);
        assert!(peers.make_room(Place::Own).is_some() && peers.make_room(Place::Own).is_none());
        let d = peers.insert(gid(4), Place::Own).unwrap();
        assert!(peers.get(c).is_none() && peers.find(&gid(3)).is_none());
        assert_eq!(peers.find(&gid(2)), Some(b));
        for id in [b, d] {
            peers.get_mut(id).unwrap().pins = 1;
        }
        assert!(
            peers.make_room(Place::Own).is_none() && peers.insert(gid(5), Place::Own).is_none()
        );
        peers.get_mut(a).unwrap().vqps = 0;
        peers.rest(a);
        assert!(peers.make_room(Place::Own).is_some());
        assert!(peers.insert(gid(5), Place::Own).is_some());
        assert_eq!(peers.find(&gid(1)), None);
    }

    /// The message of a node for which there was no place was dropped after it had been acknowledged.
    #[test]
    fn there_are_spare_places_for_those_that_are_told_that_there_is_none() {
        let mut rng = Rng::new(3);
        let mut peers = Peers::new(2, &mut rng);
        let used = [1, 2].map(|n| peers.insert(gid(n), Place::Own).unwrap());
        for id in used {
            peers.get_mut(id).unwrap().vqps = 1;
        }
        let mut told = Vec::new();
        for n in 0..SPARE as u8 {
            while peers.make_room(Place::Spare).is_some() {}
            let id = peers.insert(gid(10 + n), Place::Spare).unwrap();
            assert!(peers.is_spare(id) && !peers.is_spare(used[0]));
            peers.get_mut(id).unwrap().pins = 1;
            told.push(id);
        }
        assert!(peers.make_room(Place::Spare).is_none());
        assert_eq!(peers.insert(gid(100), Place::Spare), None, "so many are told at once");
        peers.get_mut(told[0]).unwrap().pins = 0;
        peers.rest(told[0]);
        assert!(peers.make_room(Place::Spare).is_some());
        assert!(peers.insert(gid(100), Place::Spare).is_some());
        assert_eq!(peers.insert(gid(101), Place::Own), None, "these are for nobody else");
    }

    #[test]
    fn the_list_of_idle_ones_stays_short() {
        let mut rng = Rng::new(3);
        let mut peers = Peers::new(4, &mut rng);
        let a = peers.insert(gid(1), Place::Own).unwrap();
        for _ in 0..1000 {
            peers.rest(a);
        }
        assert!(peers.idle.len() < 32);
    }
}
