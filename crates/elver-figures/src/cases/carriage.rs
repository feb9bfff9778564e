//! One way to carry messages both ways, whatever the design: each case is written once, over this.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::ValueEnum;
use elver::{Gid, Session};
use elver_ring::{Config, Listener, ListenerOptions, Options, Wire};
use elver_testbed::pair::Client;

use crate::ring::measures::Measures;
use crate::ring::rb2::Setting;
use crate::ring::rivals::{self, BACK, Choices, Lane, Layout, Meeting, THERE};
use crate::ring::stage::STALL;

const PORT: u16 = 7;
/// Slots of a rival's ring where one message is under way.
const LATENCY_SLOTS: u32 = 128;
/// Both ends look for as long as it takes.
const SPIN: Duration = Duration::from_secs(1);

/// How messages get to the other end; each set as for `bench ring`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Design {
    /// RB²'s rings.
    Rb2,
    /// FaRM's.
    Farm,
    /// SocksDirect's.
    #[value(name = "socksdirect")]
    SocksDirect,
    /// L5's.
    L5,
    /// MVAPICH's.
    Mvapich,
    /// None: the program calls itself, on one thread.
    Alone,
}

impl Design {
    pub(super) fn name(self) -> &'static str {
        match self {
            Design::Rb2 => "rb2",
            Design::Farm => "farm",
            Design::SocksDirect => "socksdirect",
            Design::L5 => "l5",
            Design::Mvapich => "mvapich",
            Design::Alone => "alone",
        }
    }

    /// Whether RB² is compared with it.
    pub(super) fn is_published(self) -> bool {
        self.as_set().is_some()
    }

    fn as_set(self) -> Option<Choices> {
        match self {
            Design::Rb2 | Design::Alone => None,
            Design::Farm => Some(Choices::farm()),
            Design::SocksDirect => Some(Choices::socksdirect()),
            Design::L5 => Some(Choices::l5()),
            Design::Mvapich => Some(Choices::mvapich()),
        }
    }
}

/// A pair of rings, for messages of one length each way.
pub(super) struct Carriage {
    design: Design,
    there: u32,
    back: u32,
    /// Off where one message is under way.
    is_batched: bool,
    meetings: [Meeting; 2],
}

/// An end.
pub(super) struct Ends {
    pub(super) outlet: Outlet,
    pub(super) inlet: Inlet,
    _listener: Option<Listener>,
}

impl Carriage {
    /// For messages of so many bytes there, and so many back.
    pub(super) fn new(design: Design, there: u32, back: u32, is_batched: bool) -> Result<Carriage> {
        let meetings = [Meeting::new()?, Meeting::new()?];
        Ok(Carriage { design, there, back, is_batched, meetings })
    }

    /// The server's end; lets the client begin.
    pub(super) fn accept(&self, session: &Session, peer: Gid, client: &Client) -> Result<Ends> {
        if let Some(choices) = self.choices() {
            client.begin();
            let there = Lane::receiver(
                session,
                self.layout(&choices, self.there),
                peer,
                THERE,
                &self.meetings[0],
            )?;
            let back =
                Lane::sender(session, self.layout(&choices, self.back), BACK, &self.meetings[1])?;
            return Ok(Ends::of_rival(back, there, choices));
        }
        let allowed =
            ListenerOptions { ring_bytes_max: 1 << 30, spin: SPIN, ..ListenerOptions::default() };
        let listener = Listener::bind(session, PORT, allowed)?;
        client.begin();
        let ends = listener.accept(STALL)?;
        Ok(Ends {
            outlet: Outlet::Rb2(Box::new(ends.sender)),
            inlet: Inlet::Rb2(Box::new(ends.receiver)),
            _listener: Some(listener),
        })
    }

    /// The client's end.
    pub(super) fn connect(&self, session: &Session, peer: Gid) -> Result<Ends> {
        if let Some(choices) = self.choices() {
            let there =
                Lane::sender(session, self.layout(&choices, self.there), THERE, &self.meetings[0])?;
            let back = Lane::receiver(
                session,
                self.layout(&choices, self.back),
                peer,
                BACK,
                &self.meetings[1],
            )?;
            return Ok(Ends::of_rival(there, back, choices));
        }
        let (there, back) = (self.measures(self.there)?, self.measures(self.back)?);
        let options = Options { there, back, spin: SPIN, ..Options::default() };
        let ends = elver_ring::connect(session, peer, PORT, options, STALL)?;
        Ok(Ends {
            outlet: Outlet::Rb2(Box::new(ends.sender)),
            inlet: Inlet::Rb2(Box::new(ends.receiver)),
            _listener: None,
        })
    }

    fn choices(&self) -> Option<Choices> {
        let choices = self.design.as_set()?;
        Some(if self.is_batched { choices } else { choices.unbatched() })
    }

    fn layout(&self, choices: &Choices, bytes: u32) -> Layout {
        let slots =
            if self.is_batched { Measures::default().slots_for(bytes) } else { LATENCY_SLOTS };
        Layout::new(choices, bytes, slots)
    }

    fn measures(&self, bytes: u32) -> Result<Config> {
        let config = Measures::default().config(bytes)?;
        Ok(if self.is_batched { config } else { Setting::of(config).unbatched(bytes).config })
    }
}

impl Ends {
    /// Reads a message, and waits for it; what was sent meanwhile goes out, with its batch.
    #[inline]
    pub(super) fn take(&mut self, into: &mut [u8]) -> Result<()> {
        if self.inlet.try_take(into)? {
            return Ok(());
        }
        let began = Instant::now();
        loop {
            self.outlet.go_on()?;
            if self.inlet.try_take(into)? {
                return Ok(());
            }
            std::thread::yield_now();
            ensure!(Some(began.elapsed()) < STALL, "no message comes");
        }
    }

    fn of_rival(out: Lane, into: Lane, choices: Choices) -> Ends {
        let outlet = Outlet::Rival(Box::new(rivals::Sender::new(out, choices)));
        let inlet = Inlet::Rival(Box::new(rivals::Receiver::new(into, choices)));
        Ends { outlet, inlet, _listener: None }
    }
}

/// Where messages go in.
pub(super) enum Outlet {
    Rb2(Box<elver_ring::Sender<Wire>>),
    Rival(Box<rivals::Sender>),
}

impl Outlet {
    /// Sends a message of these pieces, which is put together where it lies in the ring: a design that copies copies
    /// each of them there, once.
    #[inline]
    pub(super) fn send(&mut self, pieces: &[&[u8]]) -> Result<()> {
        match self {
            Outlet::Rb2(sender) => {
                let len = pieces.iter().map(|piece| piece.len()).sum();
                let mut room = sender.reserve(len, STALL)?;
                room.fill_from(pieces);
                Ok(room.commit()?)
            }
            Outlet::Rival(sender) => rivals::send(sender, pieces),
        }
    }

    /// Sends what waits for more behind it, unless it is to wait for what is under way.
    #[inline]
    pub(super) fn go_on(&mut self) -> Result<()> {
        match self {
            Outlet::Rb2(sender) => Ok(sender.flush_if_idle()?),
            Outlet::Rival(sender) => sender.flush().map(drop),
        }
    }

    /// Nothing waits any more.
    #[inline]
    pub(super) fn flush(&mut self) -> Result<()> {
        match self {
            Outlet::Rb2(sender) => Ok(sender.flush()?),
            Outlet::Rival(sender) => rivals::flush(sender),
        }
    }
}

/// Where they come out.
pub(super) enum Inlet {
    Rb2(Box<elver_ring::Receiver<Wire>>),
    Rival(Box<rivals::Receiver>),
}

impl Inlet {
    /// Reads a message, as long as `into`; false if none is there.
    #[inline]
    pub(super) fn try_take(&mut self, into: &mut [u8]) -> Result<bool> {
        match self {
            Inlet::Rb2(receiver) => {
                let message = receiver.try_recv()?;
                if let Some(message) = &message {
                    ensure!(message.len() == into.len(), "a message of {} bytes", message.len());
                    message.read(0, into);
                }
                Ok(message.is_some())
            }
            Inlet::Rival(receiver) => receiver.try_recv(into),
        }
    }
}
