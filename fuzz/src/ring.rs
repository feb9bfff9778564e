//! Any bytes as what a peer writes to an end of a ring: its greeting, its tail and headers to a receiver, its
//! head to a sender. Never a panic; what is believed lies within the ring and within what both ends know; and
//! what was once found to be wrong stays so.

use elver_ring::protocol::{Config, Fault, Frame, Receiver, Sender, Shape, Span};

/// Steps of a run: beyond them an input tells nothing new.
const STEPS_MAX: usize = 512;

/// Runs an input: the measures of a ring, which half of it, and a step for every nine bytes.
pub fn run(bytes: &[u8]) {
    elver_ring::fuzzed::greeting(bytes);
    let Some((measures, steps)) = bytes.split_first_chunk::<6>() else { return };
    let config = config(measures);
    if config.check().is_err() {
        return;
    }
    let steps = steps.as_chunks::<9>().0.iter().take(STEPS_MAX).map(|step| {
        let [act, word @ ..] = *step;
        (act, u64::from_le_bytes(word))
    });
    if measures[5] & 1 == 0 {
        receive(config, steps);
    } else {
        send(config, steps);
    }
}

/// Small rings, where pointers come around; some measures do not fit each other.
fn config(&[slots, slot_bytes, alpha, beta, gamma, more]: &[u8; 6]) -> Config {
    Config {
        slots: 1 << (slots % 8),
        slot_bytes: 64 * u32::from(slot_bytes % 4),
        alpha: u32::from(alpha),
        beta: u32::from(beta),
        gamma: u32::from(gamma),
        linger_ns: (more & 2 != 0).then_some(u64::from(more)),
    }
}

/// A receiver whose sender writes what it likes.
fn receive(config: Config, steps: impl Iterator<Item = (u8, u64)>) {
    let mut receiver = Receiver::new(config).expect("the measures fit");
    let shape = *receiver.shape();
    // Slots that were read, those that the sender was told of, and up to where it has told.
    let (mut read, mut told, mut tail) = (0, 0, 0);
    let mut fault: Option<Fault> = None;
    for (act, word) in steps {
        match act % 8 {
            0 | 1 => {
                // Near what it was, or anything.
                let word = if act & 0x80 == 0 { word } else { tail + (word & 0xff) };
                match receiver.tail_is(word) {
                    Ok(more) => {
                        let claimed = word & !(1 << 63);
                        assert!(claimed >= tail && claimed <= told + shape.slots());
                        assert!(more || claimed == tail);
                        tail = claimed;
                    }
                    Err(found) => stays(&mut fault, found),
                }
            }
            2..=4 => {
                let Some(offset) = receiver.next_offset() else { continue };
                assert!(read < tail && offset == shape.offset(read));
                // The header that belongs there, with any length, or anything.
                let right = ((read as u32).wrapping_add(1) as u64) << 32 | (word & 0x3ff);
                match receiver.frame(if act & 0x80 == 0 { word } else { right }) {
                    Ok(frame) => {
                        let slots = check(&frame, &shape, read);
                        assert!(read + slots <= tail, "no more than was told");
                        receiver.release(&frame);
                        read += slots;
                    }
                    Err(found) => stays(&mut fault, found),
                }
            }
            5 => receiver.push(),
            6 => {
                if let Some(word) = receiver.due() {
                    let head = word & !(1 << 63);
                    assert_eq!(head, read);
                    told = head;
                    receiver.posted(word);
                }
            }
            _ => receiver.stop(),
        }
        assert_eq!(receiver.counters().faults, u64::from(fault.is_some()));
    }
}

/// A sender whose receiver writes what it likes.
fn send(config: Config, steps: impl Iterator<Item = (u8, u64)>) {
    let mut sender = Sender::new(config).expect("the measures fit");
    let shape = *sender.shape();
    let (mut now_ns, mut tail, mut told, mut head, mut advances) = (0u64, 0, 0, 0, 0);
    let mut fault: Option<Fault> = None;
    for (act, word) in steps {
        match act % 8 {
            0..=2 => {
                if let Ok(frame) = sender.reserve((word & 0x3ff) as usize) {
                    let slots = check(&frame, &shape, tail);
                    assert!(
                        tail + slots - head <= shape.slots(),
                        "nothing that is not read is lost"
                    );
                    sender.commit(&frame, now_ns);
                    tail += slots;
                }
                assert!(sender.room_bytes() <= shape.message_bytes_max());
            }
            3 => {
                let word = if act & 0x80 == 0 { word } else { head + (word & 0xff) };
                match sender.head_is(word) {
                    Ok(_) => {
                        head = word & !(1 << 63);
                        assert!(head <= told, "it has read what it was told of");
                    }
                    Err(found) => stays(&mut fault, found),
                }
            }
            4 => sender.flush(),
            5 => {
                // Bounded: each says what is under way from then on.
                while let Some(transmission) = sender.due() {
                    inside(&transmission.slots, &shape);
                    if let Some(word) = transmission.tail {
                        told = word & !(1 << 63);
                        assert_eq!(told, tail);
                        advances += 1;
                    }
                    sender.posted(&transmission);
                }
            }
            6 => sender.advanced(word.min(advances)),
            _ if act & 0x80 == 0 => {
                now_ns = now_ns.saturating_add(word & 0xffff);
                sender.handle_time(now_ns);
            }
            _ => sender.end(),
        }
        assert_eq!(sender.counters().faults, u64::from(fault.is_some()));
    }
}

/// A ring that is over stays so, for the reason that came first.
fn stays(known: &mut Option<Fault>, found: Fault) {
    assert_eq!(*known.get_or_insert(found), found);
}

/// A message lies within the ring; how many slots it takes.
fn check(frame: &Frame, shape: &Shape, at: u64) -> u64 {
    assert_eq!(frame.header_offset(), shape.offset(at));
    let spans = frame.spans();
    inside(&spans, shape);
    assert_eq!(spans[0].len + spans[1].len, u64::from(frame.len()));
    let slot_bytes = shape.bytes() / shape.slots();
    (u64::from(frame.len()) + elver_ring::protocol::HEADER_BYTES).div_ceil(slot_bytes)
}

fn inside(spans: &[Span; 2], shape: &Shape) {
    for span in spans {
        assert!(span.offset + span.len <= shape.bytes());
    }
}
