//! Somebody who forges: what he is, and what he knows.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use elver_core::{NodeRecord, Terms};
use elver_sim::{Datagram, Rng};
use elver_verbs::Gid;
use elver_wire::{DcEth, DcExtra, PacketView, Route};

use super::kinds::{Forger, Forgers};
use crate::canary::Canary;
use crate::model::Place;

/// Of a hundred runs so many have somebody who forges, where the seed says.
const PERCENT: u32 = 25;
/// Datagrams that he remembers: any of those that he has heard, old and new.
pub(super) const MEMORY: usize = 512;
/// His own address, where he hears what is sent to him,
pub(super) const OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 9, 1);
/// and one that he forges, of a host that wants nothing.
pub(super) const VICTIM: Ipv4Addr = Ipv4Addr::new(10, 0, 9, 2);
/// What his own writing is known by: no WR has such an id.
pub(super) const WRITING: u32 = 0x8000_0000;

/// Its control QP.
pub(super) const QPN: u32 = 0x00_0777;

/// Somebody who forges, and what he knows.
#[derive(Debug)]
pub(crate) struct Forge {
    pub(super) kind: Forger,
    pub(super) rng: Rng,
    /// Bytes that came from each address where there is no node, and that were sent there.
    pub(super) given: BTreeMap<IpAddr, u64>,
    pub(super) taken: BTreeMap<IpAddr, u64>,
    /// Tokens that targets told an address: of the address, and of the target.
    pub(super) tokens: BTreeMap<(IpAddr, IpAddr), u64>,
    /// Addresses that have said one again.
    pub(super) proved: BTreeSet<IpAddr>,
    /// What he has heard of others' packets.
    pub(super) heard: Vec<Datagram>,
    /// DC sessions that he has opened.
    pub(super) sessions: Vec<Session>,
    /// The record of a member that is registered, and the meta servers that know it.
    pub(super) record: Option<NodeRecord>,
    pub(super) known_at: BTreeSet<Place>,
    /// Messages to ports that he has sent in his own name.
    pub(super) messages: u32,
    /// Of these, one that is to be read.
    pub(super) sends_long: bool,
    pub(super) serial: u32,
}

/// A node that somebody is after.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prey {
    pub(super) node: usize,
    pub(super) address: IpAddr,
    pub(super) record: NodeRecord,
}

impl Forge {
    /// Who forges in a run, if anybody does. It has a generator of its own: what others do in a run
    /// does not change with what he does.
    pub(crate) fn of(forgers: Forgers, canary: Option<Canary>, mut rng: Rng) -> Option<Box<Forge>> {
        let drawn = rng.percent(PERCENT).then_some(());
        let one = rng.pick(&Forger::ALL);
        let kind = match (canary.and_then(Canary::forger), forgers) {
            (Some(needed), _) => needed,
            (None, Forgers::Drawn) => drawn.map(|()| one)?,
            (None, Forgers::None) => return None,
            (None, Forgers::Always(forger)) => forger,
        };
        let own = IpAddr::V4(OWN);
        let record = record(&mut rng).filter(|_| kind == Forger::Member);
        Some(Box::new(Forge {
            kind,
            rng,
            given: BTreeMap::new(),
            taken: BTreeMap::new(),
            tokens: BTreeMap::new(),
            // A node may be asked for what it is.
            proved: record.map(|_| own).into_iter().collect(),
            heard: Vec::new(),
            sessions: Vec::new(),
            record,
            known_at: BTreeSet::new(),
            messages: 0,
            sends_long: false,
            serial: 0,
        }))
    }

    pub(crate) fn kind(&self) -> Forger {
        self.kind
    }

    /// Whether receivers may hold messages of his.
    pub(crate) fn has_sent_messages(&self) -> bool {
        self.messages > 0
    }

    /// Whether receives may end with messages of his that cannot be read.
    pub(crate) fn has_sent_long_messages(&self) -> bool {
        self.sends_long
    }

    /// Whether what a message says is his writing.
    pub(crate) fn wrote(&self, id: usize) -> bool {
        self.kind == Forger::Member && (id as u64) >> 31 == 1
    }

    /// Whether a GID is his own.
    pub(crate) fn is(&self, gid: Gid) -> bool {
        gid == Gid::from(IpAddr::V4(OWN))
    }

    /// Something that no other datagram of his says.
    pub(super) fn writing(&mut self) -> u64 {
        self.serial += 1;
        u64::from(WRITING | self.serial)
    }

    pub(super) fn remember(&mut self, datagram: Datagram) {
        if self.heard.len() < MEMORY {
            return self.heard.push(datagram);
        }
        let forgotten = self.rng.index(MEMORY);
        self.heard[forgotten] = datagram;
    }

    /// Takes what was sent to addresses of his, and of nobody.
    pub(super) fn took(&mut self, stray: &Datagram) {
        let (to, from) = (stray.flow.dst.ip(), stray.flow.src.ip());
        *self.taken.entry(to).or_default() += stray.bytes.len() as u64;
        if let Ok(view) = PacketView::parse(&stray.bytes)
            && let Route::Dc { extra: DcExtra::Token(token), .. } = view.headers().route()
        {
            self.tokens.insert((to, from), token);
        }
    }
}

/// What it says of itself, where it is registered: there is nothing where that points.
fn record(rng: &mut Rng) -> Option<NodeRecord> {
    let registered = rng.percent(50);
    let dc_key = rng.next_u64();
    registered.then_some(NodeRecord {
        dctn: QPN + 1,
        dc_key,
        control_qpn: QPN,
        mrs_rkey: dc_key as u32,
        log_mrs_max: 7,
        terms: Terms::new(1_000_000, 1_000_000, 1_024),
    })
}

/// A DC session that it has opened.
#[derive(Clone, Copy, Debug)]
pub(super) struct Session {
    pub(super) place: Place,
    pub(super) from: IpAddr,
    pub(super) eth: DcEth,
    /// PSN of its next packet.
    pub(super) next: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_have_all_kinds_and_mostly_none() {
        let mut counts = BTreeMap::new();
        for seed in 0..1_000 {
            let forge = Forge::of(Forgers::Drawn, None, Rng::new(seed).split("forger"));
            *counts.entry(forge.map(|forge| forge.kind)).or_insert(0) += 1;
        }
        assert!((700..800).contains(&counts[&None]), "{counts:?}");
        assert!(Forger::ALL.into_iter().all(|kind| counts[&Some(kind)] > 30), "{counts:?}");
    }
}
