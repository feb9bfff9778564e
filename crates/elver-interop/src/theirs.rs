//! The guest's end: a program over libibverbs that is told what to do, line by line.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use elver_verbs::WcStatus;

use crate::axes::{Op, Transport};
use crate::side::{About, Connect, Done, QpRef, Send};

/// How long the guest may take to answer, beyond what a command waits for by itself.
const ANSWER_WAIT: Duration = Duration::from_secs(30);
/// Longest answer.
const ANSWER_MAX: usize = 64 << 10;
/// Number of the error state (`enum ibv_qp_state`).
const QPS_ERR: u64 = 6;

/// The line to the guest's program. While it waits for an answer it runs `meanwhile`: our device
/// must be driven.
pub(crate) struct Agent {
    line: UnixStream,
    held: Vec<u8>,
}

impl Agent {
    pub(crate) fn new(line: OwnedFd) -> Result<Agent> {
        let line = UnixStream::from(line);
        line.set_nonblocking(true).context("the control line")?;
        Ok(Agent { line, held: Vec::new() })
    }

    /// Sends a command and waits for the words of its answer.
    pub(crate) fn call(
        &mut self,
        command: &str,
        wait: Duration,
        meanwhile: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Vec<String>> {
        let end = Instant::now() + ANSWER_WAIT + wait;
        let late = || format!("the guest did not answer '{command}' in time");
        let text = format!("{command}\n");
        let mut left = text.as_bytes();
        while !left.is_empty() {
            match self.line.write(left) {
                Ok(count) => left = &left[count..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => meanwhile()?,
                Err(error) => return Err(error).with_context(late),
            }
            ensure!(Instant::now() < end, late());
        }
        loop {
            if let Some(at) = self.held.iter().position(|byte| *byte == b'\n') {
                let answer: Vec<u8> = self.held.drain(..=at).collect();
                return words(command, &String::from_utf8_lossy(&answer));
            }
            let mut buffer = [0; 4096];
            match self.line.read(&mut buffer) {
                Ok(0) => bail!("the guest's program ended at '{command}'"),
                Ok(count) => self.held.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => meanwhile()?,
                Err(error) => return Err(error).with_context(late),
            }
            ensure!(self.held.len() < ANSWER_MAX, "the guest's answer to '{command}' has no end");
            ensure!(Instant::now() < end, late());
        }
    }
}

/// The words of an answer, without the `ok`.
fn words(command: &str, answer: &str) -> Result<Vec<String>> {
    let mut words = answer.split_whitespace().map(str::to_owned);
    match words.next().as_deref() {
        Some("ok") => Ok(words.collect()),
        _ => bail!("the guest's answer to '{command}' is '{}'", answer.trim()),
    }
}

/// The commands. The answers' numbers are decimal, or hexadecimal after 0x.
pub(crate) mod command {
    use super::{Connect, Op, QpRef, Send, Transport};

    pub(crate) fn qp(transport: Transport) -> String {
        let name = match transport {
            Transport::Rc => "rc",
            Transport::Uc => "uc",
            Transport::Ud => "ud",
        };
        format!("qp {name}")
    }

    pub(crate) fn connect(qp: QpRef, connect: &Connect) -> String {
        let gid: String = connect.peer_gid.iter().map(|byte| format!("{byte:02x}")).collect();
        let Connect { mtu, peer_qpn, rq_psn, sq_psn, timeout, .. } = connect;
        let Connect { retry_cnt, rnr_retry, min_rnr_timer, .. } = connect;
        format!(
            "connect {} {} {peer_qpn} {gid} {rq_psn} {sq_psn} {timeout} {retry_cnt} {rnr_retry} {min_rnr_timer}",
            qp.id,
            mtu.bytes()
        )
    }

    pub(crate) fn send(qp: QpRef, send: &Send) -> String {
        let op = match send.op {
            Op::Send => "send",
            Op::SendImm => "send-imm",
            Op::SendInv => "send-inv",
            Op::Write => "write",
            Op::WriteImm => "write-imm",
            Op::Read => "read",
            Op::CmpSwp => "cmp-swp",
            Op::FetchAdd => "fetch-add",
        };
        let Send { wr_id, offset, length, addr, rkey, argument, swap, peer_qpn, .. } = send;
        format!(
            "send {} {wr_id} {op} {offset} {length} {addr} {rkey} {argument} {swap} {peer_qpn}",
            qp.id
        )
    }
}

/// Number `at` of an answer.
pub(crate) fn number(words: &[String], at: usize) -> Result<u64> {
    let word = words.get(at).with_context(|| format!("no word {at} in {words:?}"))?;
    parse(word).with_context(|| format!("no number: '{word}'"))
}

fn parse(word: &str) -> Option<u64> {
    match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => word.parse().ok(),
    }
}

pub(crate) fn about(words: &[String]) -> Result<About> {
    let [version, device, gid, ..] = words else {
        bail!("the guest says of itself only {words:?}");
    };
    let mut bytes = [0; 16];
    for (at, byte) in bytes.iter_mut().enumerate() {
        let digits = gid.get(2 * at..2 * at + 2);
        *byte = digits
            .and_then(|digits| u8::from_str_radix(digits, 16).ok())
            .with_context(|| format!("no GID: '{gid}'"))?;
    }
    Ok(About {
        version: version.clone(),
        device: device.clone(),
        gid: bytes,
        mtu: number(words, 3)? as u32,
        addr: number(words, 4)?,
        rkey: number(words, 6)? as u32,
    })
}

/// A completion, as `WR_ID,STATUS,OPCODE,LENGTH,IMM,FLAGS`.
pub(crate) fn done(word: &str) -> Result<Done> {
    let numbers: Option<Vec<u64>> = word.split(',').map(parse).collect();
    let Some(&[wr_id, status, opcode, length, imm, flags]) = numbers.as_deref() else {
        bail!("no completion: '{word}'");
    };
    Ok(Done {
        wr_id,
        status: u8::try_from(status)
            .ok()
            .and_then(WcStatus::from_code)
            .with_context(|| format!("no status: {status}"))?,
        opcode: opcode as u32,
        length: length as u32,
        imm: imm as u32,
        flags: flags as u32,
    })
}

pub(crate) fn is_error_state(words: &[String]) -> Result<bool> {
    Ok(number(words, 0)? == QPS_ERR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read() {
        let found = done("7,10,128,1024,0xff,2").unwrap();
        assert_eq!(found.status, WcStatus::RemAccessErr);
        assert_eq!((found.wr_id, found.length, found.imm, found.flags), (7, 1024, 255, 2));
        assert!(done("7,10,128").is_err());
        assert!(done("7,99,128,0,0,0").is_err());
        assert!(words("x", "error no QP 3\n").unwrap_err().to_string().contains("no QP 3"));
        assert_eq!(words("x", "ok 1 2\n").unwrap(), ["1", "2"]);

        let words: Vec<String> =
            "6.1.0 rxe0 00000000000000000000ffff0a090002 4096 0x7f00 0x1a 0x1b"
                .split(' ')
                .map(Into::into)
                .collect();
        let about = about(&words).unwrap();
        assert_eq!((about.mtu, about.addr, about.rkey), (4096, 0x7f00, 0x1b));
        assert_eq!(about.gid[12..], [10, 9, 0, 2]);
    }
}
