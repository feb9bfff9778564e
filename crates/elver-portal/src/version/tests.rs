use super::*;
use crate::layout::Layout;
use crate::memory::Words;
use crate::ring::Producer;
use crate::{
    Answer, ClientEnd, Command, Message, MessageError, NodeEnd, RefusalCode, Reply, Request,
    Scratch, Violation, memfd,
};

/// Rings of which the test itself writes one.
struct Rings {
    words: Words,
    layout: Layout,
}

impl Rings {
    fn new() -> Rings {
        let layout = Layout::default();
        let bytes = layout.bytes();
        let file = memfd::create("test", bytes as u64, memfd::Pages::Small).unwrap();
        Rings { words: Words::map(file, bytes, false).unwrap(), layout }
    }

    /// A client of another version.
    fn commands(&self) -> Producer {
        let slots = self.layout.command_slots as usize * crate::SLOT_WORDS;
        let head = self.words.part(Layout::COMMAND_HEAD, 1);
        Producer::new(self.words.part(self.layout.commands_at(), slots), head)
    }

    /// A node of another version.
    fn completions(&self) -> Producer {
        let slots = self.layout.completion_slots as usize * crate::SLOT_WORDS;
        let head = self.words.part(Layout::COMPLETION_HEAD, 1);
        Producer::new(self.words.part(self.layout.completions_at(), slots), head)
    }
}

/// An entry of a version to come: more words than this one has for anything.
fn push(to: &mut Producer, kind: u8, id: u32, first: u64, words: usize) {
    let pushed = to.push(kind, id, words, |writer| {
        writer.put(first);
        (1..words).for_each(|_| writer.put(u64::MAX));
    });
    assert_eq!(pushed, Ok(true));
}

fn hello() -> Vec<u8> {
    Message::Hello { layout: Layout::default(), first: None }.encode()
}

#[test]
fn the_major_version_must_be_the_same() {
    for theirs in [0, VERSION - 1, VERSION + 1, u16::MAX] {
        let mut bytes = hello();
        bytes[5..7].copy_from_slice(&theirs.to_le_bytes());
        // Its own may be shorter or longer.
        for len in [7, bytes.len()] {
            assert_eq!(
                Message::decode(&bytes[..len]),
                Err(MessageError::Version { theirs }),
                "{theirs}"
            );
        }
    }
}

#[test]
fn the_minor_version_may_be_any() {
    for minor in [0, 1, u16::MAX] {
        let mut bytes = hello();
        bytes[7..9].copy_from_slice(&minor.to_le_bytes());
        assert_eq!(
            Message::decode(&bytes),
            Ok(Message::Hello { layout: Layout::default(), first: None })
        );
    }
}

#[test]
fn a_longer_message_is_read_as_far_as_it_is_known() {
    for message in [Message::Hello { layout: Layout::default(), first: None }, Message::Wake] {
        let mut bytes = message.encode();
        bytes.extend([7; 40]);
        assert_eq!(Message::decode(&bytes), Ok(message));
    }
}

#[test]
fn a_command_to_come_is_told_from_nonsense_and_what_follows_is_read() {
    let rings = Rings::new();
    let mut node = NodeEnd::over(&rings.words, rings.layout);
    let (mut commands, mut scratch) = (rings.commands(), Scratch::default());
    push(&mut commands, *COMMANDS.end(), 5, 1, 30);
    // One that is known, with fields that are not.
    push(&mut commands, 9, 6, 44, 30);
    push(&mut commands, 100, 7, 0, 1);
    let request = node.next_request(&mut scratch).unwrap();
    assert!(matches!(request, Some(Request::Unknown { request: 5, kind: 63 })));
    let request = node.next_request(&mut scratch).unwrap();
    assert!(matches!(
        request,
        Some(Request::Command { request: 6, command: Command::QueryVqp { vqp: 44 } })
    ));
    assert_eq!(node.next_request(&mut scratch).err(), Some(Violation::Kind { kind: 100 }));
}

#[test]
fn a_notice_to_come_is_passed_over_and_a_reason_has_its_text() {
    let rings = Rings::new();
    let mut client = ClientEnd::over(&rings.words, rings.layout);
    let (mut completions, mut scratch) = (rings.completions(), Scratch::default());
    push(&mut completions, *NOTICES.start(), 1, 0, 30);
    // A refusal for a reason of a later version, with a text of 8 bytes.
    let refused = completions.push(137, 2, 2, |writer| {
        writer.put(200 | 8 << 32);
        writer.put(u64::from_le_bytes(*b"too late"));
    });
    assert_eq!(refused, Ok(true));
    push(&mut completions, 190, 3, 0, 1);
    match client.next_reply(&mut scratch).unwrap() {
        Some(Reply::Answer { request: 2, answer: Answer::Refused(refusal) }) => {
            assert_eq!((refusal.code, refusal.text), (RefusalCode::Other, "too late"));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(client.next_reply(&mut scratch), Err(Violation::Kind { kind: 190 }));
}
