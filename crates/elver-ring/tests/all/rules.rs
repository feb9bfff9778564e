//! Each rule of Algorithm 1 by itself, and what a peer may not say.

use elver_ring::protocol::{Config, Fault, Frame, Receiver, Refused, Sender, Transmission};

const ENDED: u64 = 1 << 63;
/// Of the paper's example (figure 4).
const SMALL: Config =
    Config { slots: 8, slot_bytes: 64, alpha: 4, beta: 2, gamma: 2, linger_ns: None };

fn sender(config: Config) -> Sender {
    Sender::new(config).unwrap()
}

fn receiver() -> Receiver {
    Receiver::new(SMALL).unwrap()
}

/// Commits a message of so many slots.
fn send(sender: &mut Sender, slots: usize) -> Result<(), Refused> {
    let frame = sender.reserve(slots * 64 - 8)?;
    sender.commit(&frame, 0);
    Ok(())
}

/// Does what is due: bytes of slots, and the tail.
fn post(sender: &mut Sender) -> Option<(u64, Option<u64>)> {
    let due = sender.due()?;
    sender.posted(&due);
    Some((due.slots.iter().map(|span| span.len).sum(), due.tail))
}

/// Figure 4 of the paper: slots go out ahead at β, the tail at α.
#[test]
fn slots_go_out_at_beta_and_the_tail_at_alpha() {
    let mut sender = sender(SMALL);
    let mut posted = Vec::new();
    for _ in 0..4 {
        send(&mut sender, 1).unwrap();
        posted.push(post(&mut sender));
    }
    assert_eq!(posted, [None, Some((128, None)), None, Some((128, Some(4)))]);
    let counters = sender.counters();
    assert_eq!((counters.transmissions, counters.advances, counters.messages), (2, 1, 4));
}

/// The elastic threshold: while an advancement is under way slots go on without their tail, which is told
/// when that one has completed, though nothing is sent any more (the paper's lines 9 to 12 would forget it).
#[test]
fn the_tail_waits_for_the_previous_one_and_for_nothing_else() {
    let mut sender = sender(SMALL);
    send(&mut sender, 4).unwrap();
    assert_eq!(post(&mut sender), Some((256, Some(4))));
    for _ in 0..4 {
        send(&mut sender, 1).unwrap();
        if let Some((_, tail)) = post(&mut sender) {
            assert_eq!(tail, None, "the first one is under way");
        }
    }
    assert_eq!((sender.due(), sender.counters().deferred), (None, 1));
    sender.advanced(1);
    assert_eq!(post(&mut sender), Some((0, Some(8))));
    assert_eq!(sender.due(), None);
}

/// A flush waits for nothing: who has flushed may not come back.
#[test]
fn a_flush_tells_the_tail_whatever_is_under_way() {
    let mut sender = sender(SMALL);
    send(&mut sender, 4).unwrap();
    post(&mut sender).unwrap();
    send(&mut sender, 1).unwrap();
    assert_eq!(sender.due(), None);
    sender.flush();
    assert_eq!(post(&mut sender), Some((64, Some(5))));
    // With nothing to tell it tells nothing.
    sender.flush();
    assert_eq!(sender.due(), None);
}

#[test]
fn without_batching_each_message_is_told_at_once() {
    let mut sender = sender(SMALL.unbatched());
    for tail in 1..4 {
        send(&mut sender, 1).unwrap();
        assert_eq!(post(&mut sender), Some((64, Some(tail))));
        sender.advanced(tail);
    }
}

/// A part of a batch goes out when its first message has waited for so long, and not before.
#[test]
fn a_part_of_a_batch_goes_out_when_its_time_has_come() {
    let mut sender = sender(Config { linger_ns: Some(100), ..SMALL });
    assert_eq!(sender.deadline_ns(), None);
    for now_ns in [1_000, 1_050] {
        let frame = sender.reserve(1).unwrap();
        sender.commit(&frame, now_ns);
    }
    assert_eq!(post(&mut sender), Some((128, None)));
    assert_eq!(sender.deadline_ns(), Some(1_100));
    sender.handle_time(1_099);
    assert_eq!(sender.due(), None);
    sender.handle_time(1_100);
    assert_eq!(post(&mut sender), Some((0, Some(2))));
    assert_eq!((sender.deadline_ns(), sender.counters().lingered), (None, 1));
}

/// All slots can be in use; what does not fit has what is there told, since nobody would make room else.
#[test]
fn a_full_ring_says_so_and_tells_what_is_there() {
    let mut sender = sender(Config { alpha: 8, beta: 8, ..SMALL });
    for _ in 0..3 {
        send(&mut sender, 2).unwrap();
    }
    assert_eq!(send(&mut sender, 3), Err(Refused::Full));
    assert_eq!(post(&mut sender), Some((6 * 64, Some(6))));
    sender.advanced(1);
    send(&mut sender, 2).unwrap();
    assert_eq!(send(&mut sender, 1), Err(Refused::Full), "all eight slots are in use");
    assert_eq!(post(&mut sender), Some((128, Some(8))));
    sender.advanced(2);
    assert_eq!(sender.head_is(2), Ok(true));
    send(&mut sender, 2).unwrap();
    assert_eq!((sender.due(), sender.counters().full), (None, 2), "that it was full is over");
}

/// The longest message leaves room for what a receiver may keep to itself: the two would wait for ever.
#[test]
fn the_longest_message_leaves_room_for_a_lazy_receiver() {
    let mut sender = sender(SMALL);
    let max = sender.shape().message_bytes_max() as usize;
    assert_eq!(max, 7 * 64 - 8);
    let refused = sender.reserve(max + 1).unwrap_err();
    assert_eq!(refused, Refused::TooLong { len: max + 1, max: max as u32 });
    send(&mut sender, 1).unwrap();
    sender.flush();
    post(&mut sender).unwrap();
    // The receiver has read it and says nothing, since that was fewer than two slots.
    sender.reserve(max).unwrap();
}

#[test]
fn the_end_is_told_behind_the_last_message_and_once() {
    let mut sender = sender(SMALL);
    send(&mut sender, 1).unwrap();
    sender.end();
    assert_eq!(post(&mut sender), Some((64, Some(1 | ENDED))));
    assert_eq!((sender.due(), sender.reserve(1)), (None, Err(Refused::Ended)));

    let mut receiver = receiver();
    assert_eq!(receiver.tail_is(1 | ENDED), Ok(true));
    assert!(!receiver.is_ended(), "a message is there");
    take(&mut receiver, 1);
    assert!(receiver.is_ended());
    assert_eq!(receiver.tail_is(2 | ENDED), Err(Fault::AfterEnd));
}

/// A frame of the slot `at`, as the sender would write it.
fn frame(at: u64, bytes: usize) -> Frame {
    let mut sender = sender(Config { alpha: 1, beta: 1, ..SMALL });
    for told in 1..=at {
        send(&mut sender, 1).unwrap();
        post(&mut sender).unwrap();
        sender.advanced(told);
        sender.head_is(told).unwrap();
    }
    sender.reserve(bytes).unwrap()
}

/// Reads a message of one slot.
fn take(receiver: &mut Receiver, next: u64) {
    let frame = receiver.frame(frame(next - 1, 1).header()).unwrap();
    receiver.release(&frame);
}

/// The lazy push: the head is told at γ, or when it is asked for.
#[test]
fn the_head_is_told_at_gamma() {
    let mut receiver = receiver();
    receiver.tail_is(5).unwrap();
    take(&mut receiver, 1);
    assert_eq!(receiver.due(), None);
    take(&mut receiver, 2);
    assert_eq!(receiver.due(), Some(2));
    receiver.posted(2);
    take(&mut receiver, 3);
    assert_eq!(receiver.due(), None);
    receiver.push();
    assert_eq!(receiver.due(), Some(3));
    receiver.posted(3);
    receiver.push();
    assert_eq!(receiver.due(), None, "there is no news");
    assert_eq!(receiver.counters().pushes, 2);
}

#[test]
fn a_receiver_that_stops_is_heard() {
    let mut receiver = receiver();
    receiver.stop();
    let word = receiver.due().unwrap();
    receiver.posted(word);
    assert_eq!(receiver.due(), None);
    let mut sender = sender(SMALL);
    sender.head_is(word).unwrap();
    assert_eq!(sender.reserve(1), Err(Refused::Deaf));
    assert_eq!(sender.head_is(0), Err(Fault::AfterEnd), "it cannot come back");
}

/// A head that was not told, or goes back, is no head. It stays the first that was wrong, and counts once.
#[test]
fn a_sender_believes_no_head_that_cannot_be() {
    let mut sender = sender(SMALL);
    send(&mut sender, 4).unwrap();
    let fault = Fault::Head { claimed: 1, least: 0, most: 0 };
    let mut early = sender.clone();
    assert_eq!(early.head_is(1), Err(fault), "nothing was told yet");
    assert_eq!((early.reserve(1), early.due()), (Err(Refused::Fault(fault)), None));
    post(&mut sender).unwrap();
    assert_eq!(sender.head_is(3), Ok(true));
    for claimed in [5, 2, u64::MAX >> 1] {
        let mut sender = sender.clone();
        let fault = Fault::Head { claimed, least: 3, most: 4 };
        assert_eq!(sender.head_is(claimed), Err(fault));
        assert_eq!(sender.head_is(4), Err(fault), "it does not get well");
        assert_eq!(sender.counters().faults, 1);
    }
}

/// A tail beyond what the sender may know to be free, or that goes back, is no tail.
#[test]
fn a_receiver_believes_no_tail_that_cannot_be() {
    let mut receiver = receiver();
    receiver.tail_is(8).unwrap();
    take(&mut receiver, 1);
    // That slot is free, but the sender does not know.
    for claimed in [9, 7, u64::MAX >> 1] {
        let mut receiver = receiver.clone();
        let fault = Fault::Tail { claimed, least: 8, most: 8 };
        assert_eq!(receiver.tail_is(claimed), Err(fault));
        assert_eq!(receiver.tail_is(8), Err(fault), "it does not get well");
        assert_eq!((receiver.next_offset(), receiver.due()), (None, None), "nothing is delivered");
        assert_eq!(receiver.counters().faults, 1);
        receiver.stop();
        assert_eq!(receiver.due(), Some(1 | ENDED), "the sender hears that this is over");
    }
}

/// A header is believed for its place alone, and no further than the tail.
#[test]
fn a_receiver_believes_no_header_that_cannot_be() {
    let mut receiver = receiver();
    receiver.tail_is(2).unwrap();
    for header in [0, frame(1, 1).header(), u64::MAX] {
        let mut receiver = receiver.clone();
        assert!(matches!(receiver.frame(header), Err(Fault::Stale { at: 0, .. })), "{header:x}");
        assert_eq!((receiver.next_offset(), receiver.counters().faults), (None, 1));
    }
    let long = frame(0, 3 * 64 - 8);
    let expected = Fault::Length { at: 0, bytes: 3 * 64 - 8, slots: 2 };
    assert_eq!(receiver.frame(long.header()), Err(expected));
}

/// What is asked for twice is the same until it is under way.
#[test]
fn what_is_due_stays_due() {
    let mut sender = sender(SMALL);
    send(&mut sender, 2).unwrap();
    let first: Transmission = sender.due().unwrap();
    assert_eq!(sender.due(), Some(first));
    send(&mut sender, 1).unwrap();
    // There was no room to post it: it has grown.
    assert_eq!(post(&mut sender), Some((192, None)));
}

/// A peer that writes anything: nothing is delivered that does not lie within what both ends know, and
/// nothing after the first word that was wrong.
#[test]
fn whatever_a_peer_writes_is_bounded() {
    for seed in 0..2_000 {
        let mut rng = elver_random::Rng::new(seed);
        let (mut sender, mut receiver) = (sender(SMALL), receiver());
        let (mut head, mut tail, mut wrong) = (0, 0, false);
        for _ in 0..40 {
            // Often it keeps to the rules, so that it comes far.
            let word = match rng.next_u32() % 6 {
                0 => rng.next_u64(),
                1 => tail + rng.next_u64() % 12,
                _ => tail + rng.next_u64() % 3,
            };
            let told = receiver.tail_is(word);
            wrong |= told.is_err();
            assert!(!wrong || told.is_err() && receiver.next_offset().is_none(), "seed {seed}");
            tail = if wrong { tail } else { word };
            if receiver.next_offset().is_some() {
                let len = rng.next_u32() % 600;
                let good = (head as u32).wrapping_add(1);
                let header = match rng.next_u32() % 4 {
                    0 => rng.next_u64(),
                    _ => u64::from(good) << 32 | u64::from(len),
                };
                match receiver.frame(header) {
                    Ok(frame) => {
                        let slots = (u64::from(frame.len()) + 8).div_ceil(64);
                        head += slots;
                        assert!(head <= tail & !ENDED, "seed {seed}");
                        let [first, second] = frame.spans();
                        assert_eq!(first.len + second.len, u64::from(frame.len()));
                        assert!(
                            first.offset + first.len <= 512 && second.len <= 512,
                            "seed {seed}"
                        );
                        receiver.release(&frame);
                    }
                    Err(_) => wrong = true,
                }
            }
            while let Some(word) = receiver.due() {
                receiver.posted(word);
            }
            // And a receiver that writes anything, to an honest sender.
            let _ = send(&mut sender, 1 + rng.next_u32() as usize % 3);
            while post(&mut sender).is_some() {}
            let _ = sender.head_is(rng.next_u64() % 8);
        }
    }
}
