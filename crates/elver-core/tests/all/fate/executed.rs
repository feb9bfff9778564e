//! What was executed, wholly or in part, is not executed again: seen from the memory that it changed.

use super::*;

/// Words or places that a torment may use, each once.
const PLACES: u64 = 8_192;

fn word(memory: &SimMemory, n: u64) -> u64 {
    let mut bytes = [0; 8];
    memory.read(8 * n, &mut bytes).unwrap();
    u64::from_ne_bytes(bytes)
}

/// A CMP_SWP that took its word was posted again, found the value that it had put there itself, and told its
/// owner that somebody else had been faster: a lock that nobody releases.
#[test]
fn a_swap_is_executed_once_though_the_rc_qp_breaks() {
    let mut pair = Pair::new();
    let words = Region::new(&mut pair.nodes, 2, 8 * PLACES);
    let found = Region::new(&mut pair.nodes, 1, 8 * PLACES);
    found.memory.write(0, &[0xff; 8 * PLACES as usize]).unwrap();
    let workers = pair.torment(|pair, vqp, n| {
        assert!(n < PLACES);
        let op = SendOp::CompareSwap { remote: words.remote(8 * n), compare: 0, swap: n + 1 };
        pair.post(1, vqp, n, op, Payload::Sges(&[found.sge(8 * n, 8)]));
    });
    for (n, status) in workers.into_iter().flatten() {
        if status == WcStatus::Success {
            assert_eq!(word(&found.memory, n), 0, "CMP_SWP {n} found what nobody else swapped in");
            assert_eq!(word(&words.memory, n), n + 1, "CMP_SWP {n} was not executed");
        }
    }
    let stats = pair.nodes.nodes[1].core.stats();
    assert!(stats.fates_asked > 0 && stats.wrs_unsure > 0, "{stats:?}");
    pair.check();
}

/// The same behind a READ whose memory is gone, which is refused when what came behind it has been executed.
#[test]
fn a_swap_behind_a_read_of_memory_that_is_gone_is_executed_once() {
    const SWAPS: u64 = 8;
    for policy in [Policy::Lite, Policy::Shared] {
        let mut pair = Pair::new();
        let words = Region::new(&mut pair.nodes, 2, 8 * SWAPS);
        let gone = Region::new(&mut pair.nodes, 2, 64);
        let found = Region::new(&mut pair.nodes, 1, 8 * SWAPS);
        let [reader, worker] = [0, 1].map(|_| {
            let vqp = pair.nodes.vqp(1, VqpInit::default());
            pair.nodes.connect(1, vqp, 2, policy).unwrap();
            // So that their regions are known.
            for region in [&words, &gone] {
                let read = SendOp::Read(region.remote(0));
                pair.post(1, vqp, 0, read, Payload::Sges(&[found.sge(0, 8)]));
            }
            while pair.told(1, vqp).len() < 2 {
                pair.step();
            }
            pair.told[1].remove(&vqp.0);
            vqp
        });
        gone.memory.set_gone(true);
        found.memory.write(0, &[0xff; 8 * SWAPS as usize]).unwrap();
        let (read, into) = (SendOp::Read(gone.remote(0)), pair.near.sge(0, 8));
        pair.post(1, reader, 1, read, Payload::Sges(&[into]));
        for n in 0..SWAPS {
            let op = SendOp::CompareSwap { remote: words.remote(8 * n), compare: 0, swap: n + 1 };
            pair.post(1, worker, n, op, Payload::Sges(&[found.sge(8 * n, 8)]));
        }
        // Node 2 comes to run when much of it is there, and executes what it finds before it answers.
        pair.nodes.net.advance(pair.nodes.net.now().saturating_add_ns(50_000));
        while (pair.told(1, worker).len() as u64) < SWAPS || pair.told(1, reader).is_empty() {
            pair.step();
        }
        let executed = (0..SWAPS).filter(|n| word(&words.memory, *n) == n + 1).count();
        assert!(executed > 0, "{policy:?}: the READ was refused before anything came");
        for (n, status) in pair.told(1, worker) {
            if *status == WcStatus::Success {
                assert_eq!(word(&found.memory, *n), 0, "{policy:?}: CMP_SWP {n}");
            }
        }
        pair.check();
    }
}

/// The RC QP breaks in the middle of WRITEs, alone and with immediate data, whose beginning its reader has seen and
/// taken back already: it does not come a second time.
#[test]
fn a_write_that_was_begun_is_not_begun_again() {
    const LENGTH: u32 = 3_000;
    const RECEIVES: u64 = 64;
    for with_imm in [false, true] {
        // Of a WRITE's three packets two go before they are acknowledged; and there is no DC that others go over.
        let (active_mtu, max_packets_in_flight) = (Mtu::Mtu1024, 2);
        let device = elver_sim::Config::default();
        let device = elver_sim::Config { active_mtu, max_packets_in_flight, ..device };
        let mut pair = Pair::on(&device, &|_| false, &|config| config);
        let inbox = pair.nodes.vqp(2, VqpInit::default());
        let node = &mut pair.nodes.nodes[2];
        assert_eq!(node.core.qbind(node.client, inbox, 7), Ok(7));
        let receive = |pair: &mut Pair| {
            let now = pair.nodes.net.now();
            let node = &mut pair.nodes.nodes[2];
            let wr = RecvWr { wr_id: 0, sges: &[] };
            node.core.post_recv(node.client, inbox, &[wr], now).unwrap();
        };
        (0..RECEIVES).for_each(|_| receive(&mut pair));
        let far = Region::new(&mut pair.nodes, 2, PLACES * u64::from(LENGTH));
        let near = pair.near.sge(0, LENGTH);
        pair.near.memory.write(0, &[1; LENGTH as usize]).unwrap();
        let memory = far.memory.clone();
        pair.reader = Some(Reader { memory, length: LENGTH.into(), taken: Vec::new() });
        let workers = pair.torment(|pair, vqp, n| {
            assert!(n < PLACES);
            pair.reader.as_mut().unwrap().taken.push(false);
            for _ in pair.told[2].remove(&inbox.0).unwrap_or_default() {
                receive(pair);
            }
            let remote = far.remote(n * u64::from(LENGTH));
            let op = if with_imm { SendOp::WriteWithImm(remote, 0) } else { SendOp::Write(remote) };
            pair.post(1, vqp, n, op, Payload::Sges(&[near]));
        });
        let mut reader = pair.reader.take().unwrap();
        reader.look(0);
        let ended = |status: WcStatus| {
            let all = workers.iter().flatten();
            all.filter(|(_, ended)| *ended == status).map(|(n, _)| *n).collect::<Vec<_>>()
        };
        for n in ended(WcStatus::Success) {
            assert!(reader.taken[n as usize], "WRITE {n} was not executed");
        }
        let cut = ended(WcStatus::RespTimeoutErr).len();
        assert!(cut > 0, "no WRITE was cut off in its middle: {with_imm}");
        pair.check();
    }
}

/// Who takes back the first byte of what is written to him as soon as he sees it.
pub(super) struct Reader {
    memory: SimMemory,
    length: u64,
    /// Whether it was seen, by place.
    taken: Vec<bool>,
}

impl Reader {
    /// Looks at the places of what may be outstanding.
    pub(super) fn look_at_last(&mut self) {
        self.look(self.taken.len().saturating_sub(2 * WINDOW as usize));
    }

    fn look(&mut self, from: usize) {
        for (n, taken) in self.taken.iter_mut().enumerate().skip(from) {
            let at = n as u64 * self.length;
            let mut first = [0];
            self.memory.read(at, &mut first).unwrap();
            if first == [1] {
                assert!(!core::mem::replace(taken, true), "WRITE {n} was begun again");
                self.memory.write(at, &[0]).unwrap();
            }
        }
    }
}
