use std::cell::Cell;
use std::collections::BTreeSet;

use elver_sim::SimMemory;
use elver_verbs::{AccessFlags, Memory, SendOpcode};

use crate::model::arena::POISON;
use crate::model::{Hold, Op, OpIx, OpState, Place, byte};

/// Words at a region's end that atomics work on, and nothing else.
pub(crate) const ATOMIC_WORDS: u64 = 8;
/// The first of them are added to; the others are swapped.
pub(crate) const COUNTERS: u64 = 4;
/// Bytes of these words.
pub(crate) const ATOMIC_BYTES: u64 = 8 * ATOMIC_WORDS;

/// Memory of a client that it opened to peers.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) place: Place,
    pub(crate) memory: SimMemory,
    pub(crate) addr: u64,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
    pub(crate) access: AccessFlags,
    pub(crate) hold: Hold,
    /// The step at which it was the client's alone again.
    pub(crate) back: Option<u64>,
    /// Its memory is gone, though it is registered.
    pub(crate) vanished: bool,
    /// What it was filled with at first.
    initial: u64,
    /// WRITEs that may have changed it.
    writes: Vec<Write>,
    /// What FETCH_ADDs found and added, by word.
    added: Vec<(u64, u64, u64)>,
    /// What CMP_SWPs took away, by word.
    swapped: BTreeSet<(u64, u64)>,
    /// What CMP_SWPs would have put in that found something else.
    beaten: BTreeSet<u64>,
    /// What the swapped words held when somebody last looked.
    pub(crate) last: Vec<u64>,
    /// The changes that the memory had when nobody had written to it since the client got it back.
    checked: Cell<Option<u64>>,
}

#[derive(Clone, Copy, Debug)]
struct Write {
    op: OpIx,
    offset: u64,
    len: u64,
}

/// A moment of a run, to order WRITEs and READs by: a WR, what tells of one, or the end of everything.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Moment<'a> {
    Op(OpIx, &'a Op),
    /// A WR of which somebody was told, behind all that it did.
    Told(OpIx, &'a Op),
    Now(u64),
}

impl Region {
    pub(crate) fn new(
        place: Place,
        memory: SimMemory,
        addr: u64,
        lkey: u32,
        rkey: u32,
        access: AccessFlags,
        initial: u64,
    ) -> Region {
        Region {
            place,
            memory,
            addr,
            lkey,
            rkey,
            access,
            hold: Hold::Open,
            back: None,
            vanished: false,
            initial,
            writes: Vec::new(),
            added: Vec::new(),
            swapped: BTreeSet::new(),
            beaten: BTreeSet::new(),
            last: vec![0; ATOMIC_WORDS as usize],
            checked: Cell::new(None),
        }
    }

    /// Bytes that READs and WRITEs may use.
    pub(crate) fn data_len(&self) -> u64 {
        self.memory.size() - ATOMIC_BYTES
    }

    /// Whether a WR may do this here.
    pub(crate) fn allows(&self, opcode: SendOpcode) -> bool {
        self.access.contains(match opcode {
            SendOpcode::Read => AccessFlags::REMOTE_READ,
            SendOpcode::CompareSwap | SendOpcode::FetchAdd => AccessFlags::REMOTE_ATOMIC,
            _ => AccessFlags::REMOTE_WRITE,
        })
    }

    pub(crate) fn add_write(&mut self, op: OpIx, offset: u64, len: u64) {
        self.writes.push(Write { op, offset, len });
    }

    /// The memory goes, and the registration stays: whoever aims there breaks the queue pair.
    pub(crate) fn vanish(&mut self) {
        self.vanished = true;
        self.memory.set_gone(true);
    }

    pub(crate) fn drop_asked(&mut self) {
        if self.hold == Hold::Open {
            self.hold = Hold::Dropping;
        }
    }

    /// The memory is the client's alone again: it overwrites it, and nobody else may.
    pub(crate) fn watch(&mut self, step: u64) {
        self.hold = Hold::Back;
        self.back = Some(step);
        self.memory.set_gone(false);
        let poison = vec![POISON; self.memory.size() as usize];
        self.memory.write_waiting(0, &poison).expect("a memory has all its bytes");
    }

    /// Nobody may have changed memory that the client has got back.
    pub(crate) fn check(&self) -> Result<(), String> {
        let changes = Some(self.memory.changes());
        if self.hold != Hold::Back || self.checked.get() == changes {
            return Ok(());
        }
        if let Some(at) = self.memory.view().iter().position(|byte| *byte != POISON) {
            return Err(format!("byte {at} was written after the region was deregistered"));
        }
        self.checked.set(changes);
        Ok(())
    }

    /// Whether `found` may stand at `offset` for one who looked at `when`.
    pub(crate) fn check_read(
        &self,
        ops: &[Op],
        when: Moment<'_>,
        offset: u64,
        found: &[u8],
    ) -> Result<(), String> {
        let end = offset + found.len() as u64;
        let seen: Vec<Write> = self
            .writes
            .iter()
            .copied()
            .filter(|write| write.offset < end && write.offset + write.len > offset)
            .collect();
        let mut cuts: BTreeSet<u64> = seen
            .iter()
            .flat_map(|write| [write.offset, write.offset + write.len])
            .filter(|cut| *cut > offset && *cut < end)
            .collect();
        cuts.insert(end);
        let mut from = offset;
        for to in cuts {
            let here: Vec<Write> = seen
                .iter()
                .copied()
                .filter(|write| write.offset <= from && write.offset + write.len >= to)
                .collect();
            let may = self.candidates(ops, when, &here);
            for at in from..to {
                let byte_found = found[(at - offset) as usize];
                let fits = |write: &Option<Write>| {
                    let (id, first) = match write {
                        Some(write) => (write.op as u64, write.offset),
                        None => (self.initial, 0),
                    };
                    byte(id, at - first) == byte_found
                };
                if !may.iter().any(fits) {
                    let by: Vec<usize> = may.iter().flatten().map(|write| write.op).collect();
                    return Err(format!(
                        "byte {at} is {byte_found:#04x}, but only WRs {by:?} may have been last"
                    ));
                }
            }
            from = to;
        }
        Ok(())
    }

    /// The WRITEs that may have been the last before `when`; none stands for the first content.
    fn candidates(&self, ops: &[Op], when: Moment<'_>, here: &[Write]) -> Vec<Option<Write>> {
        let over = |write: &Write, by: &Write| {
            before(ops, write.op, Moment::Op(by.op, &ops[by.op])) && before(ops, by.op, when)
        };
        let mut may: Vec<Option<Write>> = here
            .iter()
            .filter(|write| !here.iter().any(|by| over(write, by)))
            .map(|write| Some(*write))
            .collect();
        if !here.iter().any(|write| before(ops, write.op, when)) {
            may.push(None);
        }
        may
    }

    /// Takes what an atomic found in a word.
    pub(crate) fn atomic(
        &mut self,
        ops: &[Op],
        op: &Op,
        offset: u64,
        found: u64,
    ) -> Result<(), String> {
        let word = (offset - self.data_len()) / 8;
        if op.opcode == SendOpcode::FetchAdd {
            let (add, _) = op.operands;
            let mut others = self.added.iter().filter(|(at, ..)| *at == word);
            if let Some((_, old, other)) =
                others.find(|(_, old, other)| found < old + other && *old < found + add)
            {
                return Err(format!(
                    "two additions to word {word} overlap: {old} + {other} and {found} + {add}"
                ));
            }
            self.added.push((word, found, add));
            return Ok(());
        }
        let (compare, swap) = op.operands;
        let known = found == 0
            || ops
                .iter()
                .any(|other| other.opcode == SendOpcode::CompareSwap && other.operands.1 == found);
        if !known {
            return Err(format!("word {word} held {found:#x}, which nobody swapped in"));
        }
        // Each swaps in a value of its own.
        if found == swap {
            return Err(format!("word {word} was swapped twice: {found:#x} is what it puts there"));
        }
        if found == compare && !self.swapped.insert((word, found)) {
            return Err(format!("{found:#x} was swapped out of word {word} twice"));
        }
        if found != compare {
            self.beaten.insert(swap);
        }
        self.last[word as usize] = if found == compare { swap } else { found };
        Ok(())
    }

    /// Plants an addition that nobody asked for.
    pub(crate) fn add_again(&self, offset: u64, add: u64) {
        let at = offset as usize;
        let word: [u8; 8] = self.memory.view()[at..at + 8].try_into().expect("eight bytes");
        let sum = u64::from_ne_bytes(word).wrapping_add(add).to_ne_bytes();
        self.memory.write_waiting(offset, &sum).expect("an atomic lies in its region");
    }

    /// Checks the whole content when nothing is in flight any more.
    pub(crate) fn check_rest(&self, index: usize, ops: &[Op], now: u64) -> Result<(), String> {
        if self.hold != Hold::Open {
            return Ok(());
        }
        let bytes = self.memory.view();
        let data = self.data_len();
        self.check_read(ops, Moment::Now(now), 0, &bytes[..data as usize])?;
        let held_in = |word: u64| {
            let at = (data + word * 8) as usize;
            u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
        };
        for word in 0..COUNTERS {
            let held = held_in(word);
            let aimed = |op: &&Op| {
                op.opcode == SendOpcode::FetchAdd
                    && op.remote == Some((index, data + word * 8))
                    && op.planted.is_none()
            };
            let (mut least, mut unsure) = (0, Vec::new());
            for op in ops.iter().filter(aimed) {
                match op.state {
                    OpState::Succeeded => least += op.operands.0,
                    _ => unsure.push(op.operands.0),
                }
            }
            if held < least || !is_sum(held - least, &unsure) {
                return Err(format!(
                    "counter {word} is {held}, but must be {least} and some of {unsure:?}"
                ));
            }
        }
        for word in COUNTERS..ATOMIC_WORDS {
            let held = held_in(word);
            let puts_it = |op: &Op| {
                op.opcode == SendOpcode::CompareSwap
                    && op.remote == Some((index, data + word * 8))
                    && op.planted.is_none()
                    && op.operands.1 == held
            };
            if self.swapped.contains(&(word, held)) {
                return Err(format!("word {word} is {held:#x}, which was swapped out of it"));
            }
            if held != 0 && (self.beaten.contains(&held) || !ops.iter().any(puts_it)) {
                return Err(format!("word {word} is {held:#x}, which nobody swapped in"));
            }
        }
        Ok(())
    }
}

/// Whether a number is the sum of some of others, each once.
fn is_sum(sum: u64, of: &[u64]) -> bool {
    let mut sums = BTreeSet::from([0]);
    for number in of {
        let more: Vec<u64> =
            sums.iter().map(|one| one + number).filter(|one| *one <= sum).collect();
        sums.extend(more);
    }
    sums.contains(&sum)
}

/// Whether a WR had surely taken effect before another moment: it was known to have ended, or the
/// other follows it on the same connection.
fn before(ops: &[Op], op: OpIx, when: Moment<'_>) -> bool {
    let this = &ops[op];
    match when {
        Moment::Now(step) => this.ended.is_some_and(|ended| ended <= step),
        Moment::Told(told, then) => op == told || before(ops, op, Moment::Op(told, then)),
        Moment::Op(other, then) => {
            let follows = this.vqp == then.vqp && this.epoch == then.epoch && op < other;
            let failed = matches!(this.state, OpState::Failed(_) | OpState::Forgotten);
            (follows && !failed) || this.ended.is_some_and(|ended| ended < then.posted)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::bytes;

    const LEN: u64 = 64;
    const INITIAL: u64 = 1_000_000;

    fn region() -> Region {
        let memory = SimMemory::new(vec![0; (LEN + ATOMIC_BYTES) as usize], 0);
        memory.write(0, &bytes(INITIAL, LEN as u32)).unwrap();
        Region::new((0, 1), memory, 0, 1, 2, AccessFlags::all(), INITIAL)
    }

    fn op(vqp: usize, opcode: SendOpcode, posted: u64, ended: Option<u64>) -> Op {
        Op {
            vqp,
            epoch: 1,
            opcode,
            signaled: true,
            state: if ended.is_some() { OpState::Succeeded } else { OpState::Outstanding },
            posted,
            ended,
            pieces: Vec::new(),
            len: LEN as u32,
            remote: None,
            planted: None,
            operands: (0, 0),
            delivered: false,
            must_succeed: false,
        }
    }

    /// Whether a READ, the last of the WRs, may return what a WR wrote, or the first content.
    fn may_read(region: &Region, ops: &[Op], id: u64) -> bool {
        let last = ops.len() - 1;
        let found = bytes(id, LEN as u32);
        region.check_read(ops, Moment::Op(last, &ops[last]), 0, &found).is_ok()
    }

    #[test]
    fn what_was_overwritten_before_a_read_does_not_come_back() {
        let mut region = region();
        let write = SendOpcode::Write;
        let ops =
            [op(1, write, 1, Some(2)), op(2, write, 3, Some(4)), op(3, SendOpcode::Read, 5, None)];
        region.add_write(0, 0, LEN);
        region.add_write(1, 0, LEN);
        assert!(may_read(&region, &ops, 1));
        assert!(!may_read(&region, &ops, 0));
        assert!(!may_read(&region, &ops, INITIAL));
    }

    #[test]
    fn a_write_that_runs_beside_a_read_may_be_seen_or_not() {
        let mut region = region();
        let ops = [op(1, SendOpcode::Write, 1, None), op(2, SendOpcode::Read, 2, None)];
        region.add_write(0, 0, LEN);
        assert!(may_read(&region, &ops, 0));
        assert!(may_read(&region, &ops, INITIAL));
        assert!(!may_read(&region, &ops, 7));
    }

    #[test]
    fn a_read_behind_a_write_on_one_vqp_sees_it() {
        let mut region = region();
        let ops = [op(1, SendOpcode::Write, 1, None), op(1, SendOpcode::Read, 1, None)];
        region.add_write(0, 0, LEN);
        assert!(may_read(&region, &ops, 0));
        assert!(!may_read(&region, &ops, INITIAL));
    }

    #[test]
    fn additions_do_not_overlap_and_swaps_take_a_value_once() {
        let mut region = region();
        let mut add = op(1, SendOpcode::FetchAdd, 1, None);
        add.operands = (5, 0);
        region.atomic(&[], &add, LEN, 0).unwrap();
        region.atomic(&[], &add, LEN, 5).unwrap();
        assert!(region.atomic(&[], &add, LEN, 5).is_err());
        let mut swap = op(1, SendOpcode::CompareSwap, 1, None);
        swap.operands = (0, 9);
        let at = LEN + 8 * COUNTERS;
        region.atomic(std::slice::from_ref(&swap), &swap, at, 0).unwrap();
        assert!(region.atomic(std::slice::from_ref(&swap), &swap, at, 0).is_err());
        assert!(region.atomic(std::slice::from_ref(&swap), &swap, at, 77).is_err());
        assert!(region.atomic(std::slice::from_ref(&swap), &swap, at, 9).is_err(), "its own");
    }

    /// A swapped word holds at the end what somebody swapped in, whom nobody told that he lost, and which nobody took
    /// away.
    #[test]
    fn a_swapped_word_holds_what_the_last_one_put_there() {
        let mut region = region();
        let at = LEN + 8 * COUNTERS;
        let swap = |compare, swap, ended| {
            let mut op = op(1, SendOpcode::CompareSwap, 1, ended);
            (op.operands, op.remote) = ((compare, swap), Some((0, at)));
            op
        };
        let ops = [swap(0, 9, Some(2)), swap(0, 8, Some(2)), swap(9, 7, None)];
        region.atomic(&ops, &ops[0], at, 0).unwrap();
        region.atomic(&ops, &ops[1], at, 9).unwrap();
        let ends_with = |held: u64| {
            region.memory.write(at, &held.to_ne_bytes()).unwrap();
            region.check_rest(0, &ops, 3).is_ok()
        };
        assert!(ends_with(9) && ends_with(7));
        assert!(!ends_with(0) && !ends_with(8) && !ends_with(6));
    }

    #[test]
    fn who_is_told_of_a_write_finds_it_or_what_came_behind() {
        let mut region = region();
        let write = SendOpcode::Write;
        let ops = [
            op(1, write, 1, None),
            op(1, SendOpcode::WriteWithImm, 1, None),
            op(2, write, 2, None),
        ];
        for write in 0..3 {
            region.add_write(write, 0, LEN);
        }
        let finds = |id| {
            let found = bytes(id, LEN as u32);
            region.check_read(&ops, Moment::Told(1, &ops[1]), 0, &found).is_ok()
        };
        assert!(finds(1) && finds(2));
        assert!(!finds(0) && !finds(INITIAL));
    }

    #[test]
    fn what_may_have_been_added_was_added_once() {
        assert!(is_sum(0, &[]) && is_sum(0, &[5]) && is_sum(12, &[5, 100, 7]));
        assert!(!is_sum(10, &[5]) && !is_sum(13, &[5, 7]) && !is_sum(1, &[]));
        assert!(is_sum(10, &[5, 5]));
    }

    #[test]
    fn a_region_that_is_back_must_not_change() {
        let mut region = region();
        region.watch(1);
        assert_eq!(region.check(), Ok(()));
        region.memory.write(9, &[0]).unwrap();
        assert!(region.check().is_err());
    }
}
