//! Every design moves every message, whole and once.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Result, ensure};
use elver::{Gid, Session};
use elver_console::Failure;
use elver_testbed::apart::Notice;
use elver_testbed::pair::Client;

use super::super::stage::{self, STALL, wait};
use super::bench::{THERE, flush, send};
use super::choices::Choices;
use super::lane::{Lane, Meeting};
use super::layout::Layout;
use super::receiver::Receiver;
use super::sender::{MADE_PER_LOOK, Sender};
use crate::args::Stage;

type Made = fn() -> Choices;

const DESIGNS: [(&str, Made); 8] = [
    ("pull-cq", Choices::pull_cq),
    ("push-cq", Choices::push_cq),
    ("pull-wt", Choices::pull_wt),
    ("push-wt", Choices::push_wt),
    ("farm", Choices::farm),
    ("socksdirect", Choices::socksdirect),
    ("l5", Choices::l5),
    ("mvapich", Choices::mvapich),
];
/// No multiple of a batch or of the slots, and several laps of the short rings.
const MESSAGES: u64 = 403;

/// Their nodes have the same addresses.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn content(number: u64, size: u32) -> Vec<u8> {
    (0..u64::from(size)).map(|at| (number * 31 + at * 7 + 1) as u8).collect()
}

/// A tail that is told too early, a place that is filled before it is read, a batch that is lost or told
/// twice, messages that fill the ring while the send queue is full and are never written, a header in the
/// message's place: each shows as wrong bytes, or as a message that does not come.
#[test]
fn every_message_of_every_design_comes_once_in_order_as_it_was() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for (name, choices) in DESIGNS {
        let measures =
            [(64, 256, Stage::Loopback), (100, 16, Stage::Host), (9_000, 32, Stage::Loopback)];
        for (size, slots, stage) in measures {
            let choices = choices();
            let layout = Layout::new(&choices, size, slots);
            let meeting = Meeting::new().unwrap();
            let [settled, looked] = [(); 2].map(|()| Notice::new().unwrap());
            let serve = |session: &Session, peer: Gid, client: &Client| -> Result<()> {
                client.begin();
                let lane = Lane::receiver(session, layout, peer, THERE, &meeting)?;
                let mut receiver = Receiver::new(lane, choices);
                let mut into = vec![0; size as usize];
                let (mut count, mut began) = (0, Instant::now());
                while count < MESSAGES {
                    if receiver.try_recv(&mut into)? {
                        ensure!(into == content(count, size), "message {count} has other bytes");
                        (count, began) = (count + 1, Instant::now());
                    } else {
                        std::thread::yield_now();
                        ensure!(Some(began.elapsed()) < STALL, "message {count} does not come");
                    }
                }
                // The sender goes when all of them were acknowledged, and nobody looks any more.
                while settled.told()?.is_none() {
                    ensure!(!client.is_gone(), "the sender has gone");
                    ensure!(!receiver.try_recv(&mut into)?, "one more message came");
                    std::thread::yield_now();
                }
                looked.tell([0; 2])?;
                wait(session, || Ok(client.is_gone().then_some(())))
            };
            let ran = stage::run(stage.into(), serve, |session, _| {
                let lane = Lane::sender(session, layout, THERE, &meeting)?;
                let mut sender = Sender::new(lane, choices);
                for number in 0..MESSAGES {
                    send(&mut sender, &[&content(number, size)])?;
                }
                flush(&mut sender)?;
                sender.settle()?;
                settled.tell([0; 2])?;
                wait(session, || looked.told()).map(drop)
            });
            match ran {
                Ok(()) => {}
                Err(Failure::Failed(error)) => panic!("{name}, {size} B: {error:#}"),
                Err(Failure::Unusable(why) | Failure::HandedOn { what: why, .. }) => {
                    panic!("{name}, {size} B: {why}")
                }
            }
        }
    }
}

/// Ten are under way and the ring is nearly empty: the rest goes when one of the ten is done, although nobody flushes and
/// no place is missed.
#[test]
fn what_waits_for_those_under_way_goes_when_one_of_them_is_done() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let choices = Choices::socksdirect();
    let (size, slots) = (64, 256);
    let layout = Layout::new(&choices, size, slots);
    let meeting = Meeting::new().unwrap();
    let serve = |session: &Session, peer: Gid, client: &Client| -> Result<()> {
        client.begin();
        let _lane = Lane::receiver(session, layout, peer, THERE, &meeting)?;
        wait(session, || Ok(client.is_gone().then_some(())))
    };
    let ran = stage::run(Stage::Loopback.into(), serve, |session, _| {
        let lane = Lane::sender(session, layout, THERE, &meeting)?;
        let mut sender = Sender::new(lane, choices);
        for number in 0..MADE_PER_LOOK {
            ensure!(sender.try_send(&[&content(number, size)])?, "the ring is full");
        }
        wait(session, || Ok(sender.goes_on()?.then_some(())))
    });
    if let Err(Failure::Failed(error)) = ran {
        panic!("{error:#}");
    }
}
