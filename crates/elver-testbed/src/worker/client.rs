//! The workers that connect to a target.

use std::io::BufRead;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use elver::{
    AccessFlags, ConnectOptions, Destination, Gid, Mr, Payload, RecvWr, SendFlags, SendOp, SendWr,
    Session, Via, Vqp, VqpOptions, Wc, WcStatus,
};
use serde::{Deserialize, Serialize};

use crate::pattern::{SEED, pattern, patterned};
use crate::ways::Way;
use crate::worker::target::{CHECK, CHECK_BYTES, MESSAGE};
use crate::worker::task::{ALL, Known, OFFERED, Place, STEP};
use crate::worker::tell::{end_with_parent, tell};

/// VQPs and regions of the victim.
const VICTIM_VQPS: usize = 16;
const VICTIM_MRS: usize = 8;
const VICTIM_MR_BYTES: u64 = 1 << 20;
/// READs that the victim has outstanding on each VQP.
const VICTIM_DEPTH: usize = 32;
/// Lengths of the messages that are echoed: inline, copied, and read by the receiver.
const ECHOES: [u32; 5] = [8, 64, 1_000, 3_000, 200_000];
/// Connects that wake up who has a part in them.
const AWAKE: u32 = 20;
/// Bytes that are READ and WRITTEN: some packets, and not a whole number of them.
const PIECE: u32 = 123_457;

/// How long a way to connect takes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ConnectTime {
    /// The way's.
    pub name: String,
    /// The median, in microseconds.
    pub p50_us: f64,
}

/// What was moved and compared.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Moved {
    /// By READs.
    pub read_bytes: u64,
    /// By WRITEs.
    pub written_bytes: u64,
    /// By messages, and as many back.
    pub echoed_bytes: u64,
    /// Messages.
    pub echoes: u32,
}

/// What the steady reader saw.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Steady {
    /// READs so far.
    pub reads: u64,
}

/// What the victim holds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Held {
    /// VQPs.
    pub vqps: u32,
    /// Memory regions.
    pub mrs: u32,
    /// Their bytes.
    pub bytes: u64,
}

/// A VQP that moved.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Switched {
    /// What backed it.
    pub from: String,
    /// What backs it.
    pub to: String,
    /// How often it moved.
    pub transfers: u32,
    /// READs that it took.
    pub reads: u64,
    /// The time that it took, in milliseconds.
    pub ms: f64,
    /// The median of connects that found the RC QP.
    pub connect_us: f64,
}

/// Times of a first contact.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct First {
    /// To have a session and its VQP, in microseconds.
    pub attach_us: f64,
    /// From then on, to have memory and a connection, in microseconds.
    pub connect_us: f64,
    /// From the first call to the first READ, in microseconds.
    pub total_us: f64,
}

/// Times a way to connect.
pub(super) fn connects(at: &Place, to: &Known, way: &str, repeats: u32) -> Result<()> {
    let session = at.attach()?;
    let way = Way::named(way).with_context(|| format!("{way} is no way to connect"))?;
    let options = way.options_of_a_process();
    // What an engine that slept needs to be awake is no part of it, nor what it learns only once.
    time(&session, to, options, AWAKE)?;
    let p50_us = time(&session, to, options, repeats)?;
    tell(&ConnectTime { name: way.name.into(), p50_us })
}

/// Microseconds of a connect, the median of some.
fn time(session: &Session, to: &Known, options: ConnectOptions, repeats: u32) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..repeats {
        let vqp = session.create_vqp(VqpOptions::default())?;
        let since = Instant::now();
        vqp.qconnect_with(to.gid(), to.port, options)?;
        times.push(since.elapsed());
    }
    times.sort_unstable();
    Ok(times[times.len() / 2].as_nanos() as f64 / 1e3)
}

/// Moves bytes in every way, and compares them all.
pub(super) fn traffic(at: &Place, to: &Known, seed: u64) -> Result<()> {
    let session = at.attach()?;
    let vqp = session.create_vqp(VqpOptions::default())?;
    vqp.qconnect(to.gid(), to.port)?;
    let near = session.alloc(2 * MESSAGE, ALL)?;
    let mut moved = Moved { read_bytes: 0, written_bytes: 0, echoed_bytes: 0, echoes: 0 };

    for offset in [0, 7, 99_999] {
        transfer(&vqp, SendOp::Read(to.remote(offset)), near.sge(0, PIECE))?;
        compare(&near, 0, &patterned(SEED, offset, PIECE as usize), "READ")?;
        moved.read_bytes += u64::from(PIECE);
    }
    // Every client has its part of the written half.
    let part = OFFERED / 2 + seed % 4 * (OFFERED / 8);
    near.write(0, &patterned(seed, part, PIECE as usize))?;
    transfer(&vqp, SendOp::Write(to.remote(part)), near.sge(0, PIECE))?;
    let mut check = vec![0; CHECK_BYTES];
    check[0] = CHECK;
    for (index, word) in [part, u64::from(PIECE), seed].into_iter().enumerate() {
        check[8 + 8 * index..16 + 8 * index].copy_from_slice(&word.to_le_bytes());
    }
    let answer = ask(&vqp, &near, &check)?;
    ensure!(answer == [CHECK, 1], "the target holds other bytes than were written");
    moved.written_bytes += u64::from(PIECE);

    for len in ECHOES {
        let sent = patterned(seed, u64::from(len), len as usize);
        let echo = ask(&vqp, &near, &sent)?;
        let good = echo.len() == sent.len()
            && echo.iter().zip(&sent).all(|(echo, sent)| *echo == sent.wrapping_add(1));
        ensure!(good, "the answer to a message of {len} bytes is wrong");
        moved.echoed_bytes += u64::from(len);
        moved.echoes += 1;
    }
    tell(&moved)
}

/// READs and compares until the parent has enough.
pub(super) fn steady(at: &Place, to: &Known) -> Result<()> {
    let session = at.attach()?;
    let (vqp, near) = ready(&session, to)?;
    tell(&Steady { reads: 0 })?;
    let enough = Arc::new(AtomicBool::new(false));
    let told = enough.clone();
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        told.store(true, Ordering::Relaxed);
    });
    let mut reads = 0;
    while !enough.load(Ordering::Relaxed) {
        read_and_compare(&vqp, &near, to, reads)?;
        reads += 1;
    }
    tell(&Steady { reads })
}

/// Holds much, and has much under way, until it is killed.
pub(super) fn victim(at: &Place, to: &Known) -> Result<()> {
    let session = at.attach()?;
    let regions: Vec<Mr> =
        (0..VICTIM_MRS).map(|_| session.alloc(VICTIM_MR_BYTES, ALL)).collect::<Result<_, _>>()?;
    let vqps: Vec<Vqp> = (0..VICTIM_VQPS)
        .map(|_| {
            let vqp = session.create_vqp(VqpOptions::default())?;
            vqp.qconnect(to.gid(), to.port)?;
            Ok(vqp)
        })
        .collect::<Result<_, elver::Error>>()?;
    let post = |vqp: &Vqp, near: &Mr| -> Result<()> {
        let sges = [near.sge(0, 4_096)];
        let wr = wr(SendOp::Read(to.remote(0)), &sges);
        vqp.post_send(&[wr])?;
        Ok(())
    };
    for (index, vqp) in vqps.iter().enumerate() {
        for _ in 0..VICTIM_DEPTH {
            post(vqp, &regions[index % VICTIM_MRS])?;
        }
    }
    let bytes = VICTIM_MRS as u64 * VICTIM_MR_BYTES;
    tell(&Held { vqps: VICTIM_VQPS as u32, mrs: VICTIM_MRS as u32, bytes })?;
    end_with_parent()?;
    let mut wcs = [Wc::default(); VICTIM_DEPTH];
    loop {
        for (index, vqp) in vqps.iter().enumerate() {
            let found = vqp.poll_cq(&mut wcs)?;
            for wc in &wcs[..found] {
                ensure!(wc.status == WcStatus::Success, "a READ failed: {}", wc.status);
                post(vqp, &regions[index % VICTIM_MRS])?;
            }
        }
    }
}

/// READs, comparing all, until the VQP has moved to an RC QP.
pub(super) fn hot(at: &Place, to: &Known, repeats: u32) -> Result<()> {
    let session = at.attach()?;
    let (vqp, near) = ready(&session, to)?;
    let from = vqp.info()?.via;
    let since = Instant::now();
    let reads = until_rc(&vqp, &near, to)?;
    let ms = since.elapsed().as_secs_f64() * 1e3;
    // It goes on as before.
    for round in 0..1_000 {
        read_and_compare(&vqp, &near, to, round)?;
    }
    let info = vqp.info()?;
    let name = |via| match via {
        Some(Via::DcCached | Via::DcLookup) => "dc".to_string(),
        Some(Via::Rc) => "rc".to_string(),
        other => format!("{other:?}").to_lowercase(),
    };
    let connect_us = time(&session, to, ConnectOptions::default(), repeats)?;
    let (from, to) = (name(from), name(info.via));
    tell(&Switched { from, to, transfers: info.transfers, reads, ms, connect_us })
}

/// A first contact.
pub(super) fn first(at: &Place, to: &Known) -> Result<()> {
    tell(&first_contact(at, to)?)
}

/// A first contact that begins at a word.
pub(super) fn storm(at: &Place, to: &Known) -> Result<()> {
    tell(&true)?;
    let mut word = String::new();
    std::io::stdin().lock().read_line(&mut word)?;
    tell(&first_contact(at, to)?)
}

/// From the first call into the library to the first READ of 8 bytes, which are compared.
pub(super) fn first_contact(at: &Place, to: &Known) -> Result<First> {
    let since = Instant::now();
    let peer = Destination { port: to.port, ..Destination::new(to.gid()) };
    let (vqp, connecting) = at.dial(&peer)?;
    let attached = since.elapsed();
    // While the peer is looked up.
    let near = vqp.session().alloc(8, AccessFlags::LOCAL_WRITE)?;
    if connecting.wait(Some(STEP)).is_err() {
        connect_in_the_end(&vqp, to.gid(), to.port, ConnectOptions::default())?;
    }
    let connected = since.elapsed();
    transfer(&vqp, SendOp::Read(to.remote(0)), near.sge(0, 8))?;
    let total = since.elapsed();
    compare(&near, 0, &patterned(SEED, 0, 8), "READ")?;
    let us = |time: Duration| time.as_nanos() as f64 / 1e3;
    Ok(First { attach_us: us(attached), connect_us: us(connected - attached), total_us: us(total) })
}

/// Connects, and again if whoever has to answer had no turn in all the time: what is lost counts.
pub(super) fn connect_in_the_end(
    vqp: &Vqp,
    gid: Gid,
    port: u16,
    options: ConnectOptions,
) -> Result<Via, elver::Error> {
    let since = Instant::now();
    loop {
        match vqp.qconnect_start(gid, port, options)?.wait(Some(STEP)) {
            Err(_) if since.elapsed() < STEP => {}
            ended => return ended,
        }
    }
}

/// A connected VQP, and memory for what it reads.
fn ready(session: &Session, to: &Known) -> Result<(Vqp, Mr)> {
    let vqp = session.create_vqp(VqpOptions::default())?;
    vqp.qconnect(to.gid(), to.port)?;
    Ok((vqp, session.alloc(4_096, ALL)?))
}

/// READs until the VQP is backed by an RC QP; returns how many it took.
fn until_rc(vqp: &Vqp, near: &Mr, to: &Known) -> Result<u64> {
    /// READs between two looks at what backs it.
    const READS: u64 = 200;
    let since = Instant::now();
    let mut reads = 0;
    while since.elapsed() < STEP {
        for _ in 0..READS {
            read_and_compare(vqp, near, to, reads)?;
            reads += 1;
        }
        if vqp.info()?.via == Some(Via::Rc) {
            return Ok(reads);
        }
    }
    bail!("after {reads} READs the VQP is still not backed by an RC QP")
}

/// READs a word of the target's, another one every time, and compares it.
fn read_and_compare(vqp: &Vqp, near: &Mr, to: &Known, round: u64) -> Result<()> {
    let offset = round % (OFFERED / 2 / 8) * 8;
    transfer(vqp, SendOp::Read(to.remote(offset)), near.sge(0, 8))?;
    let word = near.read_u64(0)?.to_le_bytes();
    let good = word.iter().zip(offset..).all(|(byte, at)| *byte == pattern(SEED, at));
    ensure!(good, "a READ of offset {offset} brought other bytes than are there");
    Ok(())
}

/// Posts one operation and waits for it.
fn transfer(vqp: &Vqp, op: SendOp, sge: elver::Sge) -> Result<()> {
    vqp.post_send(&[wr(op, &[sge])])?;
    let mut wcs = [Wc::default()];
    vqp.wait_cq(&mut wcs, Some(STEP)).context("an operation did not end")?;
    ensure!(wcs[0].status == WcStatus::Success, "an operation failed: {}", wcs[0].status);
    Ok(())
}

/// Sends a message and returns the answer. The upper half of `near` takes it.
fn ask(vqp: &Vqp, near: &Mr, message: &[u8]) -> Result<Vec<u8>> {
    let len = message.len() as u32;
    near.write(0, message)?;
    let room = [near.sge(MESSAGE, MESSAGE as u32)];
    vqp.post_recv(&[RecvWr { wr_id: 2, sges: &room }])?;
    vqp.post_send(&[wr(SendOp::Send, &[near.sge(0, len)])])?;
    let mut answer = None;
    for _ in 0..2 {
        let mut wcs = [Wc::default()];
        let waited = vqp.wait_cq(&mut wcs, Some(STEP));
        if let Some(failure) = vqp.failure() {
            return Err(failure).context("a message was refused");
        }
        waited.with_context(|| format!("a message of {len} bytes found no answer"))?;
        ensure!(wcs[0].status == WcStatus::Success, "a message failed: {}", wcs[0].status);
        if wcs[0].wr_id == 2 {
            let mut bytes = vec![0; wcs[0].byte_len as usize];
            near.read(MESSAGE, &mut bytes)?;
            answer = Some(bytes);
        }
    }
    answer.context("a message found no answer")
}

fn compare(near: &Mr, at: u64, expected: &[u8], what: &str) -> Result<()> {
    let mut bytes = vec![0; expected.len()];
    near.read(at, &mut bytes)?;
    ensure!(bytes == expected, "a {what} brought other bytes than were there");
    Ok(())
}

fn wr(op: SendOp, sges: &[elver::Sge]) -> SendWr<'_> {
    let (flags, payload) = (SendFlags::SIGNALED, Payload::Sges(sges));
    SendWr { wr_id: 1, op, flags, payload, dest: None }
}
