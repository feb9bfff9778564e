//! Somebody on the network who is no node, or not the one that he says: what he sends is forged, and
//! ordinary nodes work on.
//!
//! What each kind cannot do is what `docs/node.md` and `docs/wire.md` promise, and here it is asserted
//! by the same model as ever: for all that clients see, memory, completions, messages and their order,
//! he is not there. One on the path may break connections, which the model takes for a fault of the
//! network, but has nothing executed twice, nor wrongly. Beside the model, this holds: no address is
//! sent more bytes than came from it, unless it has proved itself; and nodes remember nobody who is no
//! node, whatever he says.

mod craft;
mod member;
mod on_path;
mod outsider;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use elver_core::NodeRecord;
use elver_sim::{Datagram, Rng};
use elver_verbs::{Gid, QpType};
use elver_wire::{DcExtra, PacketView, Route};
use thiserror::Error;

use crate::canary::Canary;
use crate::model::{Place, Violation, broken};
use crate::world::World;

/// Who forges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Forger {
    /// A host off the path that has no secret. It knows addresses, queue pairs, PSNs and regions' keys;
    /// where it does not forge its address, all but what admits it; where it does, it guesses the rest.
    Stranger,
    /// A process of another user on a node's host: it knows every key, and hears all, but has not the
    /// device's port.
    Process,
    /// A member gone bad: it has all nodes' records, and speaks in its own name, as a node that is
    /// registered or as none; and somebody who has them and forges addresses of others, where he hears
    /// nothing.
    Member,
    /// Somebody on the path: he hears all, says it again at any later time, and sends in the name of
    /// nodes what loses time and connections.
    OnPath,
}

impl Forger {
    /// All of them.
    pub const ALL: [Forger; 4] =
        [Forger::Stranger, Forger::Process, Forger::Member, Forger::OnPath];
}

impl fmt::Display for Forger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Forger::Stranger => "stranger",
            Forger::Process => "process",
            Forger::Member => "member",
            Forger::OnPath => "on-path",
        })
    }
}

/// Which runs have somebody who forges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Forgers {
    /// One in four, each kind as often as the others: the seed says.
    #[default]
    Drawn,
    /// None.
    None,
    /// All, and it is this one.
    Always(Forger),
}

impl fmt::Display for Forgers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Forgers::Drawn => f.write_str("drawn"),
            Forgers::None => f.write_str("none"),
            Forgers::Always(forger) => forger.fmt(f),
        }
    }
}

/// Nobody who forges has such a name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown forger `{0}`; they are drawn, none, stranger, process, member and on-path")]
pub struct UnknownForger(pub String);

impl FromStr for Forgers {
    type Err = UnknownForger;

    fn from_str(name: &str) -> Result<Forgers, UnknownForger> {
        let all = Forger::ALL.into_iter().map(Forgers::Always);
        [Forgers::Drawn, Forgers::None]
            .into_iter()
            .chain(all)
            .find(|forgers| forgers.to_string() == name)
            .ok_or_else(|| UnknownForger(name.into()))
    }
}

/// Of a hundred runs so many have somebody who forges, where the seed says.
const PERCENT: u32 = 25;
/// Datagrams that he sends at once, at most.
const BURST_MAX: u64 = 4;
/// They arrive so late, at most.
const SPREAD_NS: u64 = 2_000;
/// Datagrams that he remembers: any of those that he has heard, old and new.
const MEMORY: usize = 512;
/// His own address, where he hears what is sent to him,
const OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 9, 1);
/// and one that he forges, of a host that wants nothing.
const VICTIM: Ipv4Addr = Ipv4Addr::new(10, 0, 9, 2);
/// What his own writing is known by: no WR has such an id.
const WRITING: u32 = 0x8000_0000;

/// Somebody who forges, and what he knows.
#[derive(Debug)]
pub(crate) struct Forge {
    kind: Forger,
    rng: Rng,
    /// Bytes that came from each address where there is no node, and that were sent there.
    given: BTreeMap<IpAddr, u64>,
    taken: BTreeMap<IpAddr, u64>,
    /// Tokens that targets told an address: of the address, and of the target.
    tokens: BTreeMap<(IpAddr, IpAddr), u64>,
    /// Addresses that have said one again.
    proved: BTreeSet<IpAddr>,
    /// What he has heard of others' packets.
    heard: Vec<Datagram>,
    /// DC sessions that he has opened.
    sessions: Vec<member::Session>,
    /// The record of a member that is registered, and the meta servers that know it.
    record: Option<NodeRecord>,
    known_at: BTreeSet<Place>,
    /// Messages to ports that he has sent in his own name.
    messages: u32,
    /// Of these, one that is to be read.
    sends_long: bool,
    serial: u32,
}

/// A node that somebody is after.
#[derive(Clone, Copy, Debug)]
struct Prey {
    node: usize,
    address: IpAddr,
    record: NodeRecord,
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
        let record = member::record(&mut rng).filter(|_| kind == Forger::Member);
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
    fn writing(&mut self) -> u64 {
        self.serial += 1;
        u64::from(WRITING | self.serial)
    }

    fn remember(&mut self, datagram: Datagram) {
        if self.heard.len() < MEMORY {
            return self.heard.push(datagram);
        }
        let forgotten = self.rng.index(MEMORY);
        self.heard[forgotten] = datagram;
    }

    /// Takes what was sent to addresses of his, and of nobody.
    fn took(&mut self, stray: &Datagram) {
        let (to, from) = (stray.flow.dst.ip(), stray.flow.src.ip());
        *self.taken.entry(to).or_default() += stray.bytes.len() as u64;
        if let Ok(view) = PacketView::parse(&stray.bytes)
            && let Route::Dc { extra: DcExtra::Token(token), .. } = view.headers().route()
        {
            self.tokens.insert((to, from), token);
        }
    }
}

impl World {
    /// Somebody forges.
    pub(crate) fn forge(&mut self) -> Result<(), Violation> {
        let Some(mut forge) = self.forge.take() else { return Ok(()) };
        let listened = self.listen(&mut forge);
        forge.enlist(self);
        for _ in 0..forge.rng.between(1, BURST_MAX) {
            let Some(prey) = self.prey(&mut forge.rng) else { break };
            let datagram = match forge.kind {
                Forger::Stranger => forge.stranger(self, &prey),
                Forger::Process => forge.process(self, &prey),
                Forger::Member => forge.member(self, &prey),
                Forger::OnPath if self.healed => None,
                Forger::OnPath => forge.on_path(self),
            };
            if let Some(datagram) = datagram {
                self.send_forged(&mut forge, datagram);
            }
        }
        self.forge = Some(forge);
        listened
    }

    fn send_forged(&mut self, forge: &mut Forge, datagram: Datagram) {
        let from = datagram.flow.src.ip();
        *forge.given.entry(from).or_default() += datagram.bytes.len() as u64;
        let late = forge.rng.between(1, SPREAD_NS);
        let opcode = datagram.bytes.first().copied().unwrap_or(0);
        self.note(format_args!(
            "{}: packet {opcode:#04x}, {} -> {}, {} bytes",
            forge.kind,
            datagram.flow.src,
            datagram.flow.dst.ip(),
            datagram.bytes.len()
        ));
        self.count("packet forged");
        self.net.inject(self.now.saturating_add_ns(late), datagram);
    }

    /// A node that is up.
    fn prey(&self, rng: &mut Rng) -> Option<Prey> {
        let up = |node: &usize| self.nodes[*node].core.is_some();
        let up: Vec<usize> = (0..self.nodes.len()).filter(up).collect();
        let node = if up.is_empty() { return None } else { rng.pick(&up) };
        let record = self.nodes[node].core.as_ref()?.record();
        Some(Prey { node, address: crate::plan::Plan::address(node), record })
    }

    /// Takes what he has heard, and looks at how much was sent where.
    pub(crate) fn check_forge(&mut self) -> Result<(), Violation> {
        let Some(mut forge) = self.forge.take() else { return Ok(()) };
        let listened = self.listen(&mut forge);
        self.forge = Some(forge);
        listened
    }

    fn listen(&mut self, forge: &mut Forge) -> Result<(), Violation> {
        for datagram in self.net.take_heard() {
            forge.remember(datagram);
        }
        for stray in self.net.take_strays() {
            forge.took(&stray);
            if let Some(answer) = forge.reply(self, &stray) {
                self.send_forged(forge, answer);
            }
            let to = stray.flow.dst.ip();
            let Some(given) = forge.given.get(&to) else { continue };
            let taken = forge.taken[&to];
            if taken > *given && !forge.proved.contains(&to) {
                broken!("{to} was sent {taken} bytes, and {given} came from there");
            }
        }
        Ok(())
    }

    /// RC QPs that a node has made for somebody who is bad.
    pub(crate) fn rc_qps_of_member(&mut self, number: usize) -> u32 {
        let ends = self.qps_of(number, QpType::Rc);
        let forge = self.forge.as_ref();
        ends.iter().filter(|end| forge.is_some_and(|forge| forge.is(end.peer))).count() as u32
    }

    /// A node remembers nobody who is none.
    pub(crate) fn check_strangers(&self, number: usize) -> Result<(), Violation> {
        let Some(forge) = self.forge.as_ref().filter(|forge| forge.kind == Forger::Stranger) else {
            return Ok(());
        };
        let Some(core) = &self.nodes[number].core else { return Ok(()) };
        for peer in core.peers() {
            let his = |address: &&IpAddr| Gid::from(**address) == peer.gid;
            let node = self.gids.contains(&peer.gid);
            if !node && let Some(address) = forge.given.keys().find(his) {
                broken!("node {number} remembers {address}, where there is no node");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_return() {
        let all = Forger::ALL.into_iter().map(Forgers::Always);
        for forgers in [Forgers::Drawn, Forgers::None].into_iter().chain(all) {
            assert_eq!(forgers.to_string().parse(), Ok(forgers));
            let listed = UnknownForger(String::new()).to_string();
            assert!(listed.contains(&forgers.to_string()), "{forgers} is not listed");
        }
        assert!("nobody".parse::<Forgers>().is_err());
    }

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
