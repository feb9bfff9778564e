//! READs and WRITEs that this process does itself, in memory of other processes of its user at its node.
//!
//! The node lets it, once for each region and VQP ([`elver_portal::Command::Reach`]), and then sees nothing of it. A WR goes this way
//! only when nothing of its VQP is on its way through the node, so that the order of a VQP is kept: what was posted
//! before has ended, and what is posted later finds it done. What could be refused goes through the node, which
//! refuses it as ever. Whether the region is there still, the session's gate says at each access
//! ([`elver_portal::ClientGate`]).
//!
//! Completions wait here until the session is polled, as those that the node tells: so a queue is full of direct WRs
//! when it would be of others.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use elver_memory::peer::PeerMemory;
use elver_portal::{Answer, ClientGate, Reach, RefusalCode};
use elver_verbs::{AccessFlags, Payload, RemoteAddr, SendOp, SendWr, Wc, WcOpcode, WcStatus};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::regions::{Mapped, Regions};

/// Bytes of the longest WR that goes this way: posting it takes as long as copying them, and they keep who takes memory
/// back waiting.
const BYTES_MAX: u64 = 1 << 20;
/// Keys that are remembered as refused.
const REFUSED_MAX: usize = 1_024;

/// Which way a VQP's READs and WRITEs take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Through the node.
    Node,
    /// It may be connected to this node, which was not asked yet.
    Unknown,
    /// This process does those that it can.
    Direct,
}

/// What a session reaches itself.
pub(crate) struct Direct {
    gate: Gate,
    /// By their keys for peers.
    regions: FxHashMap<u32, Region>,
    /// Keys that the node has refused, or whose regions are gone.
    refused: FxHashSet<u32>,
    asked: Option<Asked>,
    /// The answer, if it was not looked at.
    told: Option<Told>,
    /// What was done and not told yet, by VQP.
    pub(crate) done: VecDeque<(u32, Wc)>,
}

enum Gate {
    /// It comes with the first region.
    None,
    Open(ClientGate),
    /// The node lets this process reach nothing itself.
    Off,
}

struct Region {
    memory: PeerMemory,
    addr: u64,
    len: u64,
    access: AccessFlags,
    door: u32,
    generation: u64,
}

/// A region that the node was asked for.
struct Asked {
    request: u32,
    /// For which VQP, unless that is another's by now.
    vqp: Option<u32>,
    rkey: u32,
}

enum Told {
    Reached(Reach),
    Refused(RefusalCode),
}

/// What came of a WR.
pub(crate) enum Tried {
    /// It is done; the bytes that its completion names.
    Done(u32),
    /// It goes through the node, which may be asked whether others with this key must.
    Ask(u32),
    /// It goes through the node.
    No,
}

impl Direct {
    pub(crate) fn new() -> Direct {
        Direct {
            gate: Gate::None,
            regions: FxHashMap::default(),
            refused: FxHashSet::default(),
            asked: None,
            told: None,
            done: VecDeque::new(),
        }
    }

    /// Does a WR of a VQP that has nothing on its way through the node, if it can. The WR is one that the VQP takes, and
    /// its pieces lie in regions of the session's.
    #[inline]
    pub(crate) fn execute(&mut self, wr: &SendWr<'_>, way: Way, regions: &Regions) -> Tried {
        let (remote, writes) = match &wr.op {
            SendOp::Write(remote) => (remote, true),
            SendOp::Read(remote) => (remote, false),
            _ => return Tried::No,
        };
        let Gate::Open(gate) = &mut self.gate else { return self.unknown(remote.rkey) };
        let region = match self.regions.get(&remote.rkey) {
            Some(region) if way == Way::Direct => region,
            _ => return self.unknown(remote.rkey),
        };
        let length = match wr.payload {
            Payload::Sges(sges) => sges.iter().map(|sge| u64::from(sge.length)).sum(),
            Payload::Inline(bytes) => bytes.len() as u64,
        };
        let Some(offset) = region.offset(remote, length, writes) else { return Tried::No };
        let Some(mut inside) = gate.enter(region.door, region.generation) else {
            return self.gone(remote.rkey);
        };
        // One that was done in part is done anew by the node, as a whole.
        if region.copy(&wr.payload, offset, writes, regions).is_none() {
            return Tried::No;
        }
        if writes {
            inside.has_written(length);
            Tried::Done(0)
        } else {
            inside.has_read(length);
            Tried::Done(length as u32)
        }
    }

    /// Whether the node may be asked for a region.
    #[cold]
    fn unknown(&self, rkey: u32) -> Tried {
        let may = !matches!(self.gate, Gate::Off) && self.asked.is_none();
        if may && !self.refused.contains(&rkey) { Tried::Ask(rkey) } else { Tried::No }
    }

    /// A region was taken back.
    #[cold]
    fn gone(&mut self, rkey: u32) -> Tried {
        self.regions.remove(&rkey);
        self.refuse(rkey);
        Tried::No
    }

    fn refuse(&mut self, rkey: u32) {
        if self.refused.len() >= REFUSED_MAX {
            self.refused.clear();
        }
        self.refused.insert(rkey);
    }

    /// The node was asked for a region ([`elver_portal::Command::Reach`]).
    #[cold]
    pub(crate) fn asked(&mut self, request: u32, vqp: u32, rkey: u32) {
        self.asked = Some(Asked { request, vqp: Some(vqp), rkey });
    }

    /// A VQP is gone, or connected to another: what the node says of it is not of that.
    pub(crate) fn forget(&mut self, vqp: u32) {
        if let Some(asked) = self.asked.as_mut().filter(|asked| asked.vqp == Some(vqp)) {
            asked.vqp = None;
        }
    }

    /// Keeps an answer, if it is one to this.
    #[inline]
    pub(crate) fn hears(&mut self, request: u32, answer: &Answer<'_>) -> bool {
        if self.asked.as_ref().is_none_or(|asked| asked.request != request) {
            return false;
        }
        self.told = Some(match answer {
            Answer::Reached(reach) => Told::Reached(*reach),
            Answer::Refused(refusal) => Told::Refused(refusal.code),
            _ => Told::Refused(RefusalCode::Other),
        });
        true
    }

    /// Whether there is an answer to be taken in.
    #[inline]
    pub(crate) fn was_told(&self) -> bool {
        self.told.is_some()
    }

    /// Takes an answer in, and the files that `file` gives of its request; which way a VQP takes from now on.
    #[cold]
    pub(crate) fn take_in(
        &mut self,
        mut file: impl FnMut(u32) -> Option<OwnedFd>,
    ) -> Option<(u32, Way)> {
        let (told, Asked { request, vqp, rkey }) = (self.told.take()?, self.asked.take()?);
        // A refusal may come behind the file of a gate, which is none then.
        let files = [file(request), file(request)];
        let way = match told {
            Told::Reached(reach) if self.reached(files, rkey, &reach) => Way::Direct,
            Told::Refused(RefusalCode::State) => Way::Node,
            Told::Refused(RefusalCode::Unsupported) => {
                self.gate = Gate::Off;
                Way::Node
            }
            _ => {
                self.refuse(rkey);
                Way::Unknown
            }
        };
        Some((vqp?, way))
    }

    /// Takes a region in; false if it is of no use.
    fn reached(&mut self, files: [Option<OwnedFd>; 2], rkey: u32, reach: &Reach) -> bool {
        let Reach { door, generation, addr, len, access, file_bytes } = *reach;
        let [first, second] = files;
        let mut file = first;
        if matches!(self.gate, Gate::None) {
            // The gate's file comes first. One that is alone is a region's, whose memory is nobody's epoch.
            let gate = second.is_some().then_some(file).flatten();
            let gate = gate.and_then(|file| ClientGate::map(file).ok());
            self.gate = gate.map_or(Gate::Off, Gate::Open);
            file = second;
        }
        if matches!(self.gate, Gate::Off) {
            return false;
        }
        if file_bytes == 0 {
            return self.regions.contains_key(&rkey);
        }
        let writable = access.contains(AccessFlags::REMOTE_WRITE);
        let Some(Ok(memory)) = file.map(|file| PeerMemory::map(file, len, writable)) else {
            return false;
        };
        // What had the door before is gone.
        self.regions.retain(|_, region| region.door != door);
        self.regions.insert(rkey, Region { memory, addr, len, access, door, generation });
        true
    }
}

impl Region {
    /// Where an access begins in the memory, if this may do it.
    #[inline]
    fn offset(&self, remote: &RemoteAddr, length: u64, writes: bool) -> Option<u64> {
        let needs = if writes { AccessFlags::REMOTE_WRITE } else { AccessFlags::REMOTE_READ };
        let offset = remote.addr.wrapping_sub(self.addr);
        let fits = offset <= self.len && length <= self.len - offset;
        let may = fits && self.access.contains(needs) && (1..=BYTES_MAX).contains(&length);
        may.then_some(offset)
    }

    /// Copies the bytes of a WR; nothing if memory is not what it was checked to be.
    #[inline]
    fn copy(
        &self,
        payload: &Payload<'_>,
        mut offset: u64,
        writes: bool,
        regions: &Regions,
    ) -> Option<()> {
        let sges = match payload {
            Payload::Sges(sges) => *sges,
            Payload::Inline(bytes) => return self.memory.write(offset, bytes).ok(),
        };
        for sge in sges.iter().filter(|sge| sge.length > 0) {
            let len = u64::from(sge.length);
            let (Mapped { memory: own, shared }, at) = regions.memory(sge)?;
            let copied = match (writes, shared) {
                (true, false) => self.memory.write_from(offset, own, at, len),
                (false, false) => self.memory.read_into(offset, own, at, len),
                (true, true) => self.memory.write_from_words(offset, own, at, len),
                (false, true) => self.memory.read_into_words(offset, own, at, len),
            };
            copied.ok()?;
            offset += len;
        }
        Some(())
    }
}

/// What is told of a WR that was done.
pub(crate) fn completion(vqp: u32, wr: &SendWr<'_>, byte_len: u32) -> Wc {
    let opcode: WcOpcode = wr.op.opcode().wc_opcode();
    let status = WcStatus::Success;
    Wc { wr_id: wr.wr_id, status, opcode, byte_len, qp_num: vqp, ..Wc::default() }
}

#[cfg(test)]
mod tests {
    use elver_portal::{GATE_BYTES, memfd};

    use super::*;

    const REACH: Reach = Reach {
        door: 0,
        generation: 7,
        addr: 0x1000,
        len: GATE_BYTES,
        access: AccessFlags::REMOTE_WRITE,
        file_bytes: GATE_BYTES,
    };

    fn file() -> OwnedFd {
        memfd::create("test", GATE_BYTES, memfd::Pages::Small).unwrap()
    }

    fn told(direct: &mut Direct, answer: &Answer<'_>, files: Vec<OwnedFd>) -> Option<(u32, Way)> {
        direct.asked(1, 5, 9);
        assert!(direct.hears(1, answer));
        let mut files = files.into_iter();
        let way = direct.take_in(|request| files.next().filter(|_| request == 1));
        assert!(files.next().is_none(), "it is kept for nobody");
        way
    }

    /// A region of the gate's size was taken for the gate, and each access wrote its epoch into it.
    #[test]
    fn a_regions_file_is_no_gates() {
        let mut direct = Direct::new();
        let way = told(&mut direct, &Answer::Reached(REACH), vec![file()]);
        assert_eq!(way, Some((5, Way::Unknown)));
        assert!(matches!(direct.gate, Gate::Off) && direct.regions.is_empty());
    }

    #[test]
    fn a_gate_that_came_with_a_refusal_is_none() {
        let mut direct = Direct::new();
        let refusal = elver_portal::Refusal { code: RefusalCode::Limit, text: "" };
        let way = told(&mut direct, &Answer::Refused(refusal), vec![file()]);
        assert_eq!(way, Some((5, Way::Unknown)));
        assert!(matches!(direct.gate, Gate::None));
        direct.refused.clear();
        let way = told(&mut direct, &Answer::Reached(REACH), vec![file(), file()]);
        assert_eq!(way, Some((5, Way::Direct)));
    }
}
