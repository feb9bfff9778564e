//! RB²'s rings, as the paper's evaluation sets them (section V-A).

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use elver::{Gid, Session};
use elver_console::Failure;
use elver_ring::{Config, Ends, Listener, ListenerOptions, Options, connect};
use elver_testbed::pair::Client;
use elver_testbed::sample::{Clock, Sample};

use super::stage::{self, STALL};
use crate::args::Stage;

const PORT: u16 = 7;
/// Messages between two looks at the clock.
const BURST: usize = 256;

/// Nothing is batched but the head, which is pushed lazily (section IV-A): the paper's measures, with fewer
/// slots for long messages, of which one is under way.
fn unbatched(size: u32) -> Result<Config> {
    let slots = if size > 4_096 { 16 } else { 128 };
    let config = Config { slots, gamma: slots / 4, alpha: 1, beta: 1, ..Config::default() };
    Ok(config.for_messages_of(size)?)
}

/// Both ends look for as long as it takes.
fn options(there: Config, back: Config) -> Options {
    Options { there, back, spin: Duration::from_secs(1), ..Options::default() }
}

fn accept(session: &Session, client: &Client) -> Result<(Listener, Ends)> {
    let allowed = ListenerOptions {
        ring_bytes_max: 1 << 30,
        spin: Duration::from_secs(1),
        ..ListenerOptions::default()
    };
    let listener = Listener::bind(session, PORT, allowed)?;
    client.begin();
    let ends = listener.accept(STALL)?;
    Ok((listener, ends))
}

/// Messages that are filled where they lie, one way; the receiver reads a word of each.
pub(super) fn throughput(
    stage: Stage,
    size: u32,
    config: Config,
    duration: Duration,
) -> Result<Sample, Failure> {
    let serve = |session: &Session, _: Gid, client: &Client| {
        let (_listener, mut ends) = accept(session, client)?;
        let mut word = [0; 1];
        while let Some(message) = ends.receiver.recv(STALL)? {
            message.read(0, &mut word);
        }
        Ok(ends.sender.finish(STALL)?)
    };
    stage::run(stage, serve, |session, peer| {
        let mut ends = connect(session, peer, PORT, options(config, Config::default()), STALL)?;
        let mut burst = |count: usize| -> Result<()> {
            for number in 0..count {
                let mut room = ends.sender.reserve(size as usize, STALL)?;
                room.parts()[0][0] = number as u8;
                room.commit()?;
            }
            Ok(())
        };
        // So that a burst of the longest ones does not take seconds.
        let each = BURST.min((64 << 20) / size as usize).max(1);
        let mut warm = Clock::new(duration);
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
pub(super) fn latency(stage: Stage, size: u32, duration: Duration) -> Result<Sample, Failure> {
    let serve = |session: &Session, _: Gid, client: &Client| {
        let (_listener, mut ends) = accept(session, client)?;
        while let Some(message) = ends.receiver.recv(STALL)? {
            drop(message);
            ends.sender.reserve(size as usize, STALL)?.commit()?;
            ends.sender.flush()?;
        }
        Ok(ends.sender.finish(STALL)?)
    };
    stage::run(stage, serve, |session, peer| {
        let options = options(unbatched(size)?, unbatched(size)?);
        let mut ends = connect(session, peer, PORT, options, STALL)?;
        let mut sample = Sample::new()?;
        let mut clock = Clock::new(duration);
        while clock.goes_on(&mut sample) {
            let began = Instant::now();
            ends.sender.reserve(size as usize, STALL)?.commit()?;
            ends.sender.flush()?;
            ends.receiver.recv(STALL)?.ok_or_else(|| anyhow!("the other end has ended"))?;
            sample.record(began.elapsed());
        }
        clock.finish(&mut sample);
        ends.sender.finish(STALL)?;
        Ok(sample)
    })
}
