//! What is measured of them: the same as of RB²'s rings.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use elver::{Gid, Session};
use elver_console::Failure;
use elver_testbed::apart::Notice;
use elver_testbed::pair::Client;
use elver_testbed::sample::Sample;

use super::super::stage::{self, Ground, STALL, wait};
use super::choices::Choices;
use super::lane::{Lane, Meeting};
use super::layout::Layout;
use super::receiver::Receiver;
use super::sender::Sender;

/// Where the client listens for the ring there, and the server for the one back.
pub(crate) const THERE: u16 = 11;
pub(crate) const BACK: u16 = 12;
/// Messages between two looks at the clock.
const BURST: usize = 256;
/// Slots where one message is under way.
const LATENCY_SLOTS: [u32; 2] = [128, 16];

/// How far a measurement is: the ends tell each other beside the ring, so that neither goes while the other
/// still looks.
struct Course {
    /// Messages that there are, once that is known.
    sent: Notice,
    over: Notice,
}

impl Course {
    fn new() -> Result<Course> {
        Ok(Course { sent: Notice::new()?, over: Notice::new()? })
    }

    /// Whether so many are all: then the receiver looks no more.
    fn is_all(&self, count: u64) -> Result<bool> {
        let is_all = self.sent.told()?.is_some_and(|[sent, _]| sent == count);
        if is_all {
            self.over.tell([count, 0])?;
        }
        Ok(is_all)
    }

    /// Waits until so many are read.
    fn finish(&self, session: &Session, count: u64) -> Result<()> {
        self.sent.tell([count, 0])?;
        wait(session, || self.over.told()).map(drop)
    }
}

/// What a copy needs beside the ring: all of a message, or a byte of one that is made in its place.
pub(super) fn buffer(choices: &Choices, size: u32) -> Vec<u8> {
    vec![0; if choices.copies { size as usize } else { 1 }]
}

/// Sends a message of these pieces, waiting for room.
pub(crate) fn send(sender: &mut Sender, pieces: &[&[u8]]) -> Result<()> {
    if sender.try_send(pieces)? {
        return Ok(());
    }
    let began = Instant::now();
    while !sender.try_send(pieces)? {
        std::thread::yield_now();
        ensure!(Some(began.elapsed()) < STALL, "no room comes");
    }
    Ok(())
}

pub(crate) fn flush(sender: &mut Sender) -> Result<()> {
    let began = Instant::now();
    while !sender.flush()? {
        std::thread::yield_now();
        ensure!(Some(began.elapsed()) < STALL, "nothing goes out");
    }
    Ok(())
}

/// One way, as many as go.
pub(in super::super) fn throughput(
    ground: Ground<'_>,
    size: u32,
    slots: u32,
    choices: Choices,
    duration: Duration,
) -> Result<Sample, Failure> {
    let layout = Layout::new(&choices, size, slots);
    let meeting = Meeting::new()?;
    let course = Course::new()?;
    let serve = |session: &Session, peer: Gid, client: &Client| {
        client.begin();
        let lane = Lane::receiver(session, layout, peer, ground.port(THERE), &meeting)?;
        let mut receiver = Receiver::new(lane, choices);
        let mut into = buffer(&choices, size);
        let mut count = 0;
        while !client.is_gone() {
            if receiver.try_recv(&mut into)? {
                count += 1;
                continue;
            }
            if course.is_all(count)? {
                break;
            }
            std::thread::yield_now();
        }
        Ok(())
    };
    stage::run(ground, serve, |session, _| {
        let lane = Lane::sender(session, layout, ground.port(THERE), &meeting)?;
        let mut sender = Sender::new(lane, choices);
        let mut bytes = buffer(&choices, size);
        let each = BURST.min((64 << 20) / size as usize).max(1);
        let mut sample = Sample::of_batches(each)?;
        let mut clock = ground.clock(duration)?;
        let mut count = 0;
        while clock.goes_on(&mut sample) {
            let began = Instant::now();
            for _ in 0..each {
                bytes[0] = count as u8;
                send(&mut sender, &[&bytes])?;
                count += 1;
            }
            sample.record(began.elapsed());
        }
        flush(&mut sender)?;
        course.finish(session, count)?;
        clock.finish(&mut sample);
        Ok(sample)
    })
}

/// A message and the same one back, nothing batched.
pub(in super::super) fn latency(
    ground: Ground<'_>,
    size: u32,
    choices: Choices,
    duration: Duration,
) -> Result<Sample, Failure> {
    let choices = choices.unbatched();
    let layout = Layout::new(&choices, size, LATENCY_SLOTS[usize::from(size > 4_096)]);
    let (there, back) = (Meeting::new()?, Meeting::new()?);
    let course = Course::new()?;
    let serve = |session: &Session, peer: Gid, client: &Client| {
        client.begin();
        let lane = Lane::receiver(session, layout, peer, ground.port(THERE), &there)?;
        let mut receiver = Receiver::new(lane, choices);
        let mut sender =
            Sender::new(Lane::sender(session, layout, ground.port(BACK), &back)?, choices);
        let mut bytes = buffer(&choices, size);
        let mut count = 0;
        while !client.is_gone() && !course.is_all(count)? {
            if receiver.try_recv(&mut bytes)? {
                send(&mut sender, &[&bytes])?;
                flush(&mut sender)?;
                count += 1;
            } else {
                std::thread::yield_now();
            }
        }
        Ok(())
    };
    stage::run(ground, serve, |session, peer| {
        let mut sender =
            Sender::new(Lane::sender(session, layout, ground.port(THERE), &there)?, choices);
        let lane = Lane::receiver(session, layout, peer, ground.port(BACK), &back)?;
        let mut receiver = Receiver::new(lane, choices);
        let mut bytes = buffer(&choices, size);
        let mut sample = Sample::new()?;
        let mut clock = ground.clock(duration)?;
        let mut count = 0;
        while clock.goes_on(&mut sample) {
            count += 1;
            let began = Instant::now();
            send(&mut sender, &[&bytes])?;
            flush(&mut sender)?;
            while !receiver.try_recv(&mut bytes)? {
                std::thread::yield_now();
                ensure!(Some(began.elapsed()) < STALL, "no answer comes");
            }
            sample.record(began.elapsed());
        }
        clock.finish(&mut sample);
        course.finish(session, count)?;
        Ok(sample)
    })
}
