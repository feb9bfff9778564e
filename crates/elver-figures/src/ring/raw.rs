//! WRITEs through a VQP, as perftest posts them: one for each message, and nothing else.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use elver::{
    AccessFlags, Completed, Gid, Mr, Payload, RemoteAddr, SendFlags, SendOp, SendWr, Session, Vqp,
    VqpOptions, Wc,
};
use elver_console::Failure;
use elver_testbed::apart::Notice;
use elver_testbed::pair::Client;
use elver_testbed::sample::Sample;

use super::stage::{self, Ground, STALL, told, words};

/// WRITEs under way, and of how many one is signalled.
const DEPTH: u64 = 128;
const SIGNALLED: u64 = 64;

struct End {
    vqp: Vqp,
    memory: Mr,
    size: u32,
}

/// Bytes of a buffer: whole cache lines, as a slot.
fn lines(size: u32) -> u64 {
    u64::from(size.next_multiple_of(64))
}

impl End {
    fn open(session: &Session, size: u32, buffers: u32, peer: Gid) -> Result<End> {
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        // What is written from, and behind it what is written to.
        let memory = session.alloc_apart(u64::from(buffers) * lines(size), access)?;
        let options = VqpOptions { max_send_wr: DEPTH as u32, ..VqpOptions::default() };
        let vqp = session.create_vqp(options)?;
        vqp.qconnect(peer, 0)?;
        Ok(End { vqp, memory, size })
    }

    fn into(&self) -> u64 {
        lines(self.size)
    }

    fn place(&self) -> RemoteAddr {
        self.memory.remote(self.into())
    }

    /// Writes from so many bytes behind the beginning to the same distance from `to`.
    fn write(&self, to: RemoteAddr, offset: u64, signalled: bool) -> Result<()> {
        let sges = [self.memory.sge(offset, self.size)];
        let to = RemoteAddr { addr: to.addr + offset, ..to };
        let flags = if signalled { SendFlags::SIGNALED } else { SendFlags::empty() };
        let (op, payload) = (SendOp::Write(to), Payload::Sges(&sges));
        Ok(self.vqp.post_send(&[SendWr { wr_id: 0, op, flags, payload, dest: None }])?)
    }

    fn completed(&self) -> Result<u64> {
        let mut wcs = [Wc::default(); 4];
        let taken = self.vqp.poll_cq(&mut wcs)?;
        for wc in &wcs[..taken] {
            wc.succeeded()?;
        }
        Ok(taken as u64)
    }

    /// The last byte of what is written to this end, by which perftest's ping-pong knows that it came.
    fn last(&self) -> Result<u8> {
        let mut byte = [0];
        self.memory.read(self.into() + u64::from(self.size) - 1, &mut byte)?;
        Ok(byte[0])
    }

    /// Waits for a message that ends so, and says whether it came before the other end went.
    fn wait(&self, byte: u8, is_gone: impl Fn() -> bool) -> Result<bool> {
        let began = Instant::now();
        loop {
            // Also if the message is there at the first look, or the send queue fills.
            self.completed()?;
            if self.last()? == byte {
                return Ok(true);
            }
            if is_gone() {
                return Ok(false);
            }
            std::thread::yield_now();
            ensure!(Some(began.elapsed()) < STALL, "no message came");
        }
    }

    fn stamp(&self, byte: u8) -> Result<()> {
        Ok(self.memory.write(u64::from(self.size) - 1, &[byte])?)
    }
}

/// As many as go, one way, through `buffers` in turn. Nobody takes them in.
pub(super) fn throughput(
    ground: Ground<'_>,
    size: u32,
    buffers: u32,
    duration: Duration,
) -> Result<Sample, Failure> {
    let place = Notice::new()?;
    let serve = |session: &Session, peer: Gid, client: &Client| {
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        let memory = session.alloc_apart(u64::from(buffers) * lines(size), access)?;
        let _ = peer;
        place.tell(words(memory.remote(0)))?;
        client.begin();
        while !client.is_gone() {
            session.poll()?;
            std::thread::yield_now();
        }
        Ok(())
    };
    stage::run(ground, serve, |session, peer| {
        let end = End::open(session, size, buffers, peer)?;
        let to = told(&place)?.ok_or_else(|| anyhow!("the other end said nothing"))?;
        let (mut posted, mut completed) = (0, 0);
        let mut take = |until: u64| -> Result<()> {
            let began = Instant::now();
            while completed < until {
                let more = end.completed()?;
                completed += SIGNALLED * more;
                if more == 0 {
                    // The node may be on this core.
                    std::thread::yield_now();
                }
                ensure!(Some(began.elapsed()) < STALL, "nothing completes");
            }
            Ok(())
        };
        let mut sample = Sample::of_batches(SIGNALLED as usize)?;
        let mut clock = ground.clock(duration)?;
        while clock.goes_on(&mut sample) {
            let began = Instant::now();
            take((posted + SIGNALLED).saturating_sub(DEPTH))?;
            for _ in 0..SIGNALLED {
                let offset = posted % u64::from(buffers) * lines(size);
                posted += 1;
                end.write(to, offset, posted.is_multiple_of(SIGNALLED))?;
            }
            sample.record(began.elapsed());
        }
        take(posted)?;
        clock.finish(&mut sample);
        Ok(sample)
    })
}

/// Back and forth, each end looking at the last byte.
pub(super) fn latency(
    ground: Ground<'_>,
    size: u32,
    duration: Duration,
) -> Result<Sample, Failure> {
    let (theirs, ours) = (Notice::new()?, Notice::new()?);
    let serve = |session: &Session, peer: Gid, client: &Client| {
        // Its memory first, and its way back when the client's is known.
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        let memory = session.alloc_apart(2 * lines(size), access)?;
        theirs.tell(words(memory.remote(lines(size))))?;
        client.begin();
        let to = loop {
            if let Some(to) = told(&ours)? {
                break to;
            }
            if client.is_gone() {
                return Ok(());
            }
            session.poll()?;
            std::thread::yield_now();
        };
        let vqp = session.create_vqp(VqpOptions::default())?;
        vqp.qconnect(peer, 0)?;
        let end = End { vqp, memory, size };
        let mut byte = 1;
        while end.wait(byte, || client.is_gone())? {
            end.stamp(byte)?;
            end.write(to, 0, true)?;
            byte = byte.wrapping_add(1);
        }
        Ok(())
    };
    stage::run(ground, serve, |session, peer| {
        let end = End::open(session, size, 2, peer)?;
        let to = told(&theirs)?.ok_or_else(|| anyhow!("the other end said nothing"))?;
        ours.tell(words(end.place()))?;
        let mut byte = 1u8;
        let mut sample = Sample::new()?;
        let mut clock = ground.clock(duration)?;
        while clock.goes_on(&mut sample) {
            end.stamp(byte)?;
            let began = Instant::now();
            end.write(to, 0, true)?;
            end.wait(byte, || false)?;
            sample.record(began.elapsed());
            byte = byte.wrapping_add(1);
        }
        clock.finish(&mut sample);
        Ok(sample)
    })
}
