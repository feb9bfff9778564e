//! RB²'s rings, as the paper's evaluation sets them (section V-A).

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use elver::{Gid, Numa, Policy, Session};
use elver_console::Failure;
use elver_ring::{Config, Ends, Listener, ListenerOptions, Options, Sender, Wire, connect};
use elver_testbed::pair::Client;
use elver_testbed::sample::Sample;

use super::far;
use super::stage::{self, Ground, STALL};

const PORT: u16 = 7;
/// Messages between two looks at the clock.
const BURST: usize = 256;

/// How a ring is set, and used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) config: Config,
    /// A tail that is due waits for the completion of the one before.
    pub(crate) elastic: bool,
    /// Messages are copied into the ring and out of it.
    pub(crate) copies: bool,
    pub(crate) huge_pages: bool,
    /// Each end's memory lies at the NUMA node farthest from its thread.
    pub(crate) far: bool,
    /// What carries both rings.
    pub(crate) policy: Policy,
}

impl Setting {
    /// All that RB² does, with slots from ordinary pages.
    pub(crate) fn of(config: Config) -> Setting {
        let policy = Policy::Shared;
        Setting { config, elastic: true, copies: false, huge_pages: false, far: false, policy }
    }

    /// Where one message is under way: nothing is batched but the head, which is pushed lazily unless it is
    /// not anyway (section IV-A): the paper's measures, with fewer slots for long messages.
    pub(crate) fn unbatched(self, size: u32) -> Setting {
        let slots = if size > 4_096 { 16 } else { 128 };
        let gamma = if self.config.gamma == 1 { 1 } else { slots / 4 };
        let config = Config { slots, gamma, alpha: 1, beta: 1, ..self.config };
        Setting { config, ..self }
    }

    /// Both ends look for as long as it takes.
    fn options(&self, back: Config) -> Options {
        let Setting { config: there, huge_pages, policy, .. } = *self;
        let spin = Duration::from_secs(1);
        Options { there, back, huge_pages, numa: self.numa(), spin, policy, ..Options::default() }
    }

    /// Where memory of this thread's end lies.
    fn numa(&self) -> Numa {
        if self.far { far::farthest().map_or(Numa::Any, Numa::Node) } else { Numa::Here }
    }

    /// A buffer of the program's own, for what is copied.
    fn buffer(&self, size: u32) -> Vec<u8> {
        vec![0; if self.copies { size as usize } else { 1 }]
    }

    /// Sends a message.
    fn send(
        &self,
        sender: &mut Sender<Wire>,
        size: u32,
        from: &mut [u8],
        number: u8,
    ) -> Result<()> {
        from[0] = number;
        if self.copies {
            return Ok(sender.send(from, STALL)?);
        }
        let mut room = sender.reserve(size as usize, STALL)?;
        room.parts()[0][0] = number;
        Ok(room.commit()?)
    }
}

fn accept(
    session: &Session,
    port: u16,
    client: &Client,
    setting: &Setting,
) -> Result<(Listener, Ends)> {
    let allowed = ListenerOptions {
        ring_bytes_max: 1 << 30,
        spin: Duration::from_secs(1),
        huge_pages: setting.huge_pages,
        numa: setting.numa(),
        policy: setting.policy,
        ..ListenerOptions::default()
    };
    let listener = Listener::bind(session, port, allowed)?;
    client.begin();
    let ends = listener.accept(STALL)?;
    Ok((listener, ends))
}

/// Messages one way; the receiver reads a word of each, or copies it out.
pub(crate) fn throughput(
    ground: Ground<'_>,
    size: u32,
    setting: Setting,
    duration: Duration,
) -> Result<Sample, Failure> {
    let serve = |session: &Session, _: Gid, client: &Client| {
        let (_listener, mut ends) = accept(session, ground.port(PORT), client, &setting)?;
        let mut into = setting.buffer(size);
        while let Some(message) = ends.receiver.recv(STALL)? {
            message.read(0, &mut into);
        }
        Ok(ends.sender.finish(STALL)?)
    };
    stage::run(ground, serve, |session, peer| {
        let back = Config { slot_bytes: setting.config.slot_bytes, ..Config::default() };
        // Nothing comes back but the end.
        let options = setting.options(Config { slots: 2, alpha: 1, beta: 1, gamma: 1, ..back });
        let mut ends = connect(session, peer, ground.port(PORT), options, STALL)?;
        let mut from = setting.buffer(size);
        let alpha = setting.config.alpha as usize;
        let mut burst = |count: usize| -> Result<()> {
            for number in 0..count {
                setting.send(&mut ends.sender, size, &mut from, number as u8)?;
                // Each message has a slot: what is flushed here is told whatever is under way.
                if !setting.elastic && number % alpha == alpha - 1 {
                    ends.sender.flush()?;
                }
            }
            Ok(())
        };
        // So that a burst of the longest ones does not take seconds.
        let each = BURST.min((64 << 20) / size as usize).max(1).next_multiple_of(alpha);
        let mut warm = ground.clock(duration)?;
        let mut sample = Sample::of_batches(each)?;
        while warm.goes_on(&mut sample) {
            let began = Instant::now();
            burst(each)?;
            sample.record(began.elapsed());
        }
        ends.sender.finish(STALL)?;
        // All of it was read.
        warm.finish(&mut sample);
        if ends.receiver.recv(STALL)?.is_some() {
            return Err(anyhow!("the receiver sends nothing"));
        }
        Ok(sample)
    })
}

/// A message and the same one back, nothing batched.
pub(crate) fn latency(
    ground: Ground<'_>,
    size: u32,
    setting: Setting,
    duration: Duration,
) -> Result<Sample, Failure> {
    let setting = setting.unbatched(size);
    let serve = |session: &Session, _: Gid, client: &Client| {
        let (_listener, mut ends) = accept(session, ground.port(PORT), client, &setting)?;
        let mut bytes = setting.buffer(size);
        while let Some(message) = ends.receiver.recv(STALL)? {
            if setting.copies {
                message.read(0, &mut bytes);
            }
            drop(message);
            setting.send(&mut ends.sender, size, &mut bytes, 0)?;
            ends.sender.flush()?;
        }
        Ok(ends.sender.finish(STALL)?)
    };
    stage::run(ground, serve, |session, peer| {
        let options = setting.options(setting.config);
        let mut ends = connect(session, peer, ground.port(PORT), options, STALL)?;
        let mut bytes = setting.buffer(size);
        let mut sample = Sample::new()?;
        let mut clock = ground.clock(duration)?;
        while clock.goes_on(&mut sample) {
            let began = Instant::now();
            setting.send(&mut ends.sender, size, &mut bytes, 0)?;
            ends.sender.flush()?;
            let message = ends.receiver.recv(STALL)?;
            let message = message.ok_or_else(|| anyhow!("the other end has ended"))?;
            if setting.copies {
                message.read(0, &mut bytes);
            }
            drop(message);
            sample.record(began.elapsed());
        }
        clock.finish(&mut sample);
        ends.sender.finish(STALL)?;
        Ok(sample)
    })
}
