//! How who has connected wakes the listener's end.
//!
//! Wakings go to the listener's port, and so does whatever anybody else sends there. A node that holds as many messages
//! for a port as it may refuses the next one, which fails the VQP that sent it. So wakings have a VQP of their own: a ring
//! does not fail with it, what is lost is counted, and goes again when the ring looks next.

use std::cell::Cell;
use std::time::{Duration, Instant};

use elver::{
    ConnectOptions, Connecting, Gid, Payload, SendFlags, SendOp, SendWr, Session, Vqp, VqpOptions,
    Wc, WcStatus,
};

use crate::greeting::waking;

/// Wakings that may be under way, and of how many one is signalled.
const SENDS_MAX: u32 = 16;
const SIGNALLED: u64 = 8;
/// How long a connect is waited for: the node knows the peer.
const CONNECT_WAIT: Duration = Duration::from_millis(1);
/// After so long a lost one goes again.
const AGAIN: Duration = Duration::from_millis(20);

pub(crate) struct Ringer {
    session: Session,
    gid: Gid,
    port: u16,
    /// By which the listener knows the end.
    bell: u64,
    /// Taken out while it is used.
    way: Cell<Way>,
    lost: Cell<u64>,
    /// One did not go, or may be lost.
    owed: Cell<bool>,
}

#[derive(Default)]
enum Way {
    /// It was not needed yet.
    #[default]
    None,
    /// Nothing gets through before.
    Lost(Instant),
    Asked(Vqp, Connecting),
    /// And how many were sent.
    There(Vqp, u64),
}

impl Ringer {
    pub(crate) fn new(session: Session, gid: Gid, port: u16, bell: u64) -> Ringer {
        let (way, lost, owed) = (Cell::default(), Cell::default(), Cell::default());
        Ringer { session, gid, port, bell, way, lost, owed }
    }

    /// Wakings that did not arrive.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.get()
    }

    /// Whether a waking is to go that did not, or that may be lost.
    pub(crate) fn is_owed(&self) -> bool {
        self.owed.get()
    }

    /// Sends a waking; false if it does not go now: come back.
    pub(crate) fn ring(&self) -> bool {
        self.tend();
        match self.way.take() {
            Way::None => self.connect(),
            Way::Lost(until) if Instant::now() >= until => self.connect(),
            way => self.way.set(way),
        }
        let (rung, way) = match self.way.take() {
            Way::There(vqp, sent) => {
                let next = sent + 1;
                let is_signalled = next.is_multiple_of(SIGNALLED);
                let flags = if is_signalled { SendFlags::SIGNALED } else { SendFlags::empty() };
                let bytes = waking(self.bell);
                let (op, payload) = (SendOp::Send, Payload::Inline(&bytes[..]));
                let wr = SendWr { wr_id: sent, op, flags, payload, dest: None };
                let rung = vqp.try_post_send(&[wr]).is_ok();
                (rung, Way::There(vqp, if rung { next } else { sent }))
            }
            way => (false, way),
        };
        self.way.set(way);
        self.owed.set(!rung);
        rung
    }

    /// Takes in what became of wakings and of the way that they go; whether some were lost since.
    pub(crate) fn tend(&self) -> bool {
        let lost = self.lost.get();
        let way = match self.way.take() {
            Way::Asked(vqp, asked) => match asked.poll() {
                Ok(None) => Way::Asked(vqp, asked),
                Ok(Some(_)) => Way::There(vqp, 0),
                Err(_) => self.lose(),
            },
            Way::There(vqp, _) if has_failed(&vqp) => self.lose(),
            way => way,
        };
        self.way.set(way);
        self.lost.get() != lost
    }

    /// The VQP goes: what was under way on it may have arrived or not.
    fn lose(&self) -> Way {
        self.lose_for(AGAIN)
    }

    fn lose_for(&self, pause: Duration) -> Way {
        self.lost.set(self.lost.get() + 1);
        self.owed.set(true);
        let now = Instant::now();
        Way::Lost(now.checked_add(pause).unwrap_or(now + AGAIN))
    }

    fn connect(&self) {
        let options =
            VqpOptions { max_send_wr: SENDS_MAX, max_recv_wr: 1, ..VqpOptions::default() };
        let asked = self.session.create_vqp(options).and_then(|vqp| {
            let asked = vqp.qconnect_start(self.gid, self.port, ConnectOptions::default())?;
            Ok((vqp, asked))
        });
        self.way.set(match asked {
            Ok((vqp, asked)) => Way::Asked(vqp, asked),
            // The node stands still: who asked it waits for that half of the time at most.
            Err(elver::Error::Silent | elver::Error::TimedOut) => {
                self.lose_for(self.session.patience())
            }
            Err(_) => self.lose(),
        });
        // Whoever posts a pointer may not come back soon.
        let began = Instant::now();
        loop {
            self.tend();
            let way = self.way.take();
            let goes_on = matches!(way, Way::Asked(..)) && began.elapsed() < CONNECT_WAIT;
            self.way.set(way);
            if !goes_on {
                break;
            }
            std::thread::yield_now();
        }
    }
}

fn has_failed(vqp: &Vqp) -> bool {
    let mut wcs = [Wc::default(); SENDS_MAX as usize];
    let Ok(taken) = vqp.poll_cq(&mut wcs) else { return true };
    wcs[..taken].iter().any(|wc| wc.status != WcStatus::Success) || vqp.failure().is_some()
}
