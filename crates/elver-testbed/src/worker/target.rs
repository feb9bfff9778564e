//! Offers memory, and answers messages.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use elver::{Mr, Payload, RecvWr, SendFlags, SendOp, SendWr, Vqp, VqpOptions, Wc, WcStatus};

use crate::pattern::{SEED, pattern, patterned};
use crate::worker::task::{ALL, Known, OFFERED, Place, STEP};
use crate::worker::tell::{end_with_parent, tell};

/// Bytes of the longest message.
pub(super) const MESSAGE: u64 = 256 << 10;
/// Messages that may wait.
const RECEIVES: u64 = 8;
/// How long the target sleeps at most until it looks again.
const NAP: Duration = Duration::from_millis(100);

/// A message that asks whether the written half holds what it should.
pub(super) const CHECK: u8 = 0xc5;
/// Its bytes: the kind, padding, offset, length and seed.
pub(super) const CHECK_BYTES: usize = 32;

/// Runs until the parent has enough.
pub(super) fn run(at: &Place) -> Result<()> {
    let session = at.attach()?;
    let offered = session.alloc(OFFERED, ALL)?;
    offered.write(0, &patterned(SEED, 0, OFFERED as usize / 2))?;
    let buffers = session.alloc(MESSAGE * (RECEIVES + 1), ALL)?;
    let options = VqpOptions { max_recv_wr: RECEIVES as u32, ..VqpOptions::default() };
    let vqp = session.create_vqp(options)?;
    let port = vqp.qbind(0)?;
    for index in 0..RECEIVES {
        post(&vqp, &buffers, index)?;
    }
    let remote = offered.remote(0);
    tell(&Known { gid: session.gid().0, port, addr: remote.addr, rkey: remote.rkey })?;
    end_with_parent()?;
    // Kept, so that a sender's VQP is the same one every time.
    let mut senders = HashMap::new();
    loop {
        for message in vqp.wait_msgs(Some(NAP)).or_else(|error| match error {
            elver::Error::TimedOut => Ok(Vec::new()),
            other => Err(other),
        })? {
            let wc = message.wc;
            ensure!(wc.status == WcStatus::Success, "a receive failed: {}", wc.status);
            senders.insert(message.source.id(), message.source.clone());
            let mut bytes = vec![0; wc.byte_len as usize];
            buffers.read(wc.wr_id * MESSAGE, &mut bytes)?;
            post(&vqp, &buffers, wc.wr_id)?;
            let answer = answer(&offered, &bytes)?;
            buffers.write(RECEIVES * MESSAGE, &answer)?;
            // That its sender is gone concerns the sender alone.
            let _ = send(&message.source, &buffers, answer.len() as u32);
        }
    }
}

fn post(vqp: &Vqp, buffers: &Mr, index: u64) -> Result<()> {
    let sges = [buffers.sge(index * MESSAGE, MESSAGE as u32)];
    vqp.post_recv(&[RecvWr { wr_id: index, sges: &sges }])?;
    Ok(())
}

fn send(to: &Vqp, buffers: &Mr, len: u32) -> Result<()> {
    let sges = [buffers.sge(RECEIVES * MESSAGE, len)];
    let wr = SendWr {
        wr_id: 0,
        op: SendOp::Send,
        flags: SendFlags::SIGNALED,
        payload: Payload::Sges(&sges),
        dest: None,
    };
    to.post_send(&[wr])?;
    let mut wcs = [Wc::default()];
    to.wait_cq(&mut wcs, Some(STEP))?;
    ensure!(wcs[0].status == WcStatus::Success, "an answer failed: {}", wcs[0].status);
    Ok(())
}

/// Every byte one more; or whether the written half is as it should be.
fn answer(offered: &Mr, message: &[u8]) -> Result<Vec<u8>> {
    if message.len() != CHECK_BYTES || message[0] != CHECK {
        return Ok(message.iter().map(|byte| byte.wrapping_add(1)).collect());
    }
    let word = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&message[at..at + 8]);
        u64::from_le_bytes(bytes)
    };
    let (offset, len, seed) = (word(8), word(16), word(24));
    ensure!(offset < OFFERED && len <= OFFERED - offset, "a check beyond the memory");
    let mut bytes = vec![0; len as usize];
    offered.read(offset, &mut bytes)?;
    let good = bytes.iter().zip(offset..).all(|(byte, at)| *byte == pattern(seed, at));
    Ok(vec![CHECK, u8::from(good)])
}
