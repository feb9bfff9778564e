//! Messages through a ring, over VQPs of two nodes.

use anyhow::Result;
use elver_ring::Config;
use elver_ring::protocol::{Receiver, Sender, Span};
use elver_soft::SoftMemory;
use elver_verbs::{
    Device, Memory, MrInfo, Payload, QpType, RemoteAddr, SendFlags, SendOp, SendWr, Sge,
};

use crate::bare::NOW;
use crate::sides::{initiator_side, target_side};
use crate::step::Step;
use crate::vqp_pair::{ACCESS, Net, Node, ROUNDS_MAX};

const WORD_BYTES: u64 = 8;

/// Messages of `bytes` bytes, each sent, told and read before the next.
pub(crate) fn message(bytes: usize) -> Result<Step> {
    let config = Config::default().for_messages_of(bytes as u32)?;
    let (mut sender, mut receiver) = (Sender::new(config)?, Receiver::new(config)?);
    let slots = sender.shape().bytes();
    let (mut net, server) = Net::new(QpType::Dci)?;
    let there = net.connect(server, QpType::Dci)?;
    let back = net.connect_back(QpType::Dci)?;
    let (from, to) = (End::new(&mut net.a, slots)?, End::new(&mut net.b, slots)?);
    let (message, mut read) = (vec![7; bytes], vec![0; bytes]);
    let mut advances = 0;
    Ok(Box::new(move || {
        initiator_side(|| {
            let frame = sender.reserve(bytes).expect("the receiver has read");
            from.put(frame.header_offset(), &frame.header().to_le_bytes());
            let [first, second] = frame.spans();
            let (before, behind) = message.split_at(first.len as usize);
            from.put(first.offset, before);
            from.put(second.offset, behind);
            sender.commit(&frame, 0);
            sender.flush();
            let due = sender.due().expect("it is to be told at once");
            let tail = due.tail.expect("it is to be told at once").to_le_bytes();
            let [one, other] = due.slots;
            assert_eq!(other.len, 0, "a message of one slot lies in one piece");
            let sges = [from.sge(one)];
            let wrs = [
                write(to.remote(one.offset), Payload::Sges(&sges), SendFlags::empty()),
                write(to.remote(slots), Payload::Inline(&tail), SendFlags::SIGNALED),
            ];
            net.a.core.post_send(net.a.client, there, &wrs, NOW).expect("there is room");
            sender.posted(&due);
        });
        let (mut told, mut taken) = (false, false);
        for _ in 0..ROUNDS_MAX {
            told |= net.round().0 > 0;
            taken |= target_side(|| {
                receiver.tail_is(to.word(slots)).expect("the sender keeps to the rules");
                let Some(offset) = receiver.next_offset() else { return false };
                let frame = receiver.frame(to.word(offset)).expect("the sender keeps to the rules");
                let [first, second] = frame.spans();
                let (before, behind) = read.split_at_mut(first.len as usize);
                to.get(first.offset, before);
                to.get(second.offset, behind);
                receiver.release(&frame);
                if let Some(word) = receiver.due() {
                    let head = word.to_le_bytes();
                    let head = Payload::Inline(&head);
                    let wr = write(from.remote(slots), head, SendFlags::SIGNALED);
                    net.b.core.post_send(net.b.client, back, &[wr], NOW).expect("there is room");
                    receiver.posted(word);
                }
                true
            });
            if told && taken {
                break;
            }
        }
        assert!(told && taken && read == message, "the message arrived");
        initiator_side(|| {
            advances += 1;
            sender.advanced(advances);
            sender.head_is(from.word(slots)).expect("the receiver keeps to the rules");
        });
    }))
}

fn write<'a>(to: RemoteAddr, payload: Payload<'a>, flags: SendFlags) -> SendWr<'a> {
    SendWr { wr_id: 7, op: SendOp::Write(to), flags, payload, dest: None }
}

/// A ring's slots at one node, and behind them the word that the peer writes.
struct End {
    memory: SoftMemory,
    mr: MrInfo,
}

impl End {
    fn new(node: &mut Node, slots: u64) -> Result<End> {
        let memory = node.core.device().alloc_memory(slots + WORD_BYTES)?;
        let mr = node.core.reg_mr(node.client, memory.clone(), None, ACCESS)?;
        Ok(End { memory, mr })
    }

    fn put(&self, offset: u64, bytes: &[u8]) {
        self.memory.write(offset, bytes).expect("it lies within the ring");
    }

    fn get(&self, offset: u64, bytes: &mut [u8]) {
        self.memory.read(offset, bytes).expect("it lies within the ring");
    }

    fn word(&self, offset: u64) -> u64 {
        self.memory.read_u64(offset).expect("it lies within the ring")
    }

    fn sge(&self, span: Span) -> Sge {
        Sge { addr: self.mr.addr + span.offset, length: span.len as u32, lkey: self.mr.lkey }
    }

    fn remote(&self, offset: u64) -> RemoteAddr {
        RemoteAddr { addr: self.mr.addr + offset, rkey: self.mr.rkey }
    }
}
