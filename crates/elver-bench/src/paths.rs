//! The paths, each with what one of its operations is.

use std::fmt;

use anyhow::Result;
use elver_verbs::QpType;
use elver_wire::IpId;

use crate::step::{Operation, Step};
use crate::{local, remote, ring, vqp, vqp_pair, wire};

pub(crate) struct Path {
    pub(crate) name: &'static str,
    /// Enough of them that what is done once in a while counts with its share.
    pub(crate) iterations: u32,
    pub(crate) prepare: fn() -> Result<Step>,
    group: Group,
    /// Operations in one iteration.
    operations: u32,
    /// What it is, for people.
    title: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Group {
    /// Packets without a device.
    Wire,
    /// Two devices.
    Remote,
    /// Two QPs of one device.
    Local,
    /// VQPs of one node.
    Vqp,
    /// VQPs of two nodes.
    Pair,
    /// A ring over those.
    Ring,
    /// Control.
    Control,
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (group, sides) = match self.group {
            Group::Wire => ("wire", "initiator,target"),
            Group::Remote => ("remote", "initiator,target"),
            Group::Local => ("local", "initiator"),
            Group::Vqp => ("vqp", "initiator"),
            Group::Pair => ("vqp-pair", "initiator,target"),
            Group::Ring => ("ring", "initiator,target"),
            Group::Control => ("control", "initiator"),
        };
        let Path { name, iterations, operations, title, .. } = self;
        write!(f, "{group}\t{name}\t{sides}\t{iterations}\t{operations}\t{title}")
    }
}

const OFTEN: u32 = 512;
/// Bytes of a long message, which makes 256 packets at the largest MTU.
const LONG: u32 = 1 << 20;
const LONG_PACKETS: u32 = LONG / 4096;

use Group::{Control, Local, Pair, Remote, Ring, Vqp, Wire};
use Operation::{Read, Send, Write};
use QpType::{Dci, Rc, Ud};

macro_rules! paths {
    ($($group:ident $name:literal $iterations:expr, $operations:expr, $title:literal: $prepare:expr;)+) => {
        /// Every path, in the order of the table.
        pub(crate) const ALL: &[Path] = &[$(Path {
            group: $group,
            name: $name,
            iterations: $iterations,
            operations: $operations,
            title: $title,
            prepare: || $prepare,
        }),+];
    };
}

paths! {
    Wire "wire-64" OFTEN, 1, "64 B": wire::write_only(64, IpId::Likely(0));
    Wire "wire-4096" OFTEN, 1, "4,096 B": wire::write_only(4096, IpId::Likely(0));
    Wire "wire-64-solved" OFTEN, 1, "64 B, IPv4 identification solved for":
        wire::write_only(64, IpId::Likely(1));
    Remote "rc-read-8" OFTEN, 1, "RC READ 8 B": remote::exchange(Rc, Read, 8, 1);
    Remote "dc-read-8" OFTEN, 1, "DC READ 8 B": remote::exchange(Dci, Read, 8, 1);
    Remote "rc-write-64" OFTEN, 1, "RC WRITE 64 B": remote::exchange(Rc, Write, 64, 1);
    Remote "dc-write-64" OFTEN, 1, "DC WRITE 64 B": remote::exchange(Dci, Write, 64, 1);
    Remote "rc-send-64" OFTEN, 1, "RC SEND 64 B": remote::exchange(Rc, Send, 64, 1);
    Remote "ud-send-64" OFTEN, 1, "UD SEND 64 B": remote::exchange(Ud, Send, 64, 1);
    Remote "rc-read-8-x32" 64, 32, "RC READ 8 B, batches of 32": remote::exchange(Rc, Read, 8, 32);
    Remote "dc-read-8-x32" 64, 32, "DC READ 8 B, batches of 32": remote::exchange(Dci, Read, 8, 32);
    Remote "rc-write-64-x32" 64, 32, "RC WRITE 64 B, batches of 32":
        remote::exchange(Rc, Write, 64, 32);
    Remote "dc-write-64-x32" 64, 32, "DC WRITE 64 B, batches of 32":
        remote::exchange(Dci, Write, 64, 32);
    Remote "rc-send-64-x32" 64, 32, "RC SEND 64 B, batches of 32":
        remote::exchange(Rc, Send, 64, 32);
    Remote "ud-send-64-x32" 64, 32, "UD SEND 64 B, batches of 32":
        remote::exchange(Ud, Send, 64, 32);
    Remote "rc-write-1m" 8, LONG_PACKETS, "RC WRITE 1 MB at MTU 4,096, a packet":
        remote::exchange(Rc, Write, LONG, 1);
    Remote "dc-write-1m" 8, LONG_PACKETS, "DC WRITE 1 MB at MTU 4,096, a packet":
        remote::exchange(Dci, Write, LONG, 1);
    Local "local-rc-read-8" OFTEN, 1, "RC READ 8 B": local::exchange(Rc, Read, 8, 1);
    Local "local-dc-read-8" OFTEN, 1, "DC READ 8 B": local::exchange(Dci, Read, 8, 1);
    Local "local-rc-write-8" OFTEN, 1, "RC WRITE 8 B": local::exchange(Rc, Write, 8, 1);
    Local "local-dc-write-8" OFTEN, 1, "DC WRITE 8 B": local::exchange(Dci, Write, 8, 1);
    Local "local-rc-read-8-x32" 64, 32, "RC READ 8 B, batches of 32":
        local::exchange(Rc, Read, 8, 32);
    Local "local-dc-read-8-x32" 64, 32, "DC READ 8 B, batches of 32":
        local::exchange(Dci, Read, 8, 32);
    Local "local-rc-write-8-x32" 64, 32, "RC WRITE 8 B, batches of 32":
        local::exchange(Rc, Write, 8, 32);
    Local "local-dc-write-8-x32" 64, 32, "DC WRITE 8 B, batches of 32":
        local::exchange(Dci, Write, 8, 32);
    Vqp "vqp-read-8" OFTEN, 1, "READ 8 B": vqp::exchange(Read, 8, 1);
    Vqp "vqp-write-8" OFTEN, 1, "WRITE 8 B": vqp::exchange(Write, 8, 1);
    Vqp "vqp-read-8-x32" 64, 32, "READ 8 B, batches of 32": vqp::exchange(Read, 8, 32);
    Vqp "vqp-write-8-x32" 64, 32, "WRITE 8 B, batches of 32": vqp::exchange(Write, 8, 32);
    Vqp "vqp-connect" OFTEN, 1, "creating and connecting a VQP, metadata at hand": vqp::connect();
    Vqp "vqp-connect-served" OFTEN, 1, "the same at a meta server, metadata in its own table":
        vqp::connect_served();
    Pair "vqp-rc-read" OFTEN, 1, "RC READ 8 B": vqp_pair::exchange(Rc, Read, 8, 1);
    Pair "vqp-dc-read" OFTEN, 1, "DC READ 8 B": vqp_pair::exchange(Dci, Read, 8, 1);
    Pair "vqp-rc-write" OFTEN, 1, "RC WRITE 64 B": vqp_pair::exchange(Rc, Write, 64, 1);
    Pair "vqp-dc-write" OFTEN, 1, "DC WRITE 64 B": vqp_pair::exchange(Dci, Write, 64, 1);
    Pair "vqp-rc-send" OFTEN, 1, "RC SEND 64 B": vqp_pair::exchange(Rc, Send, 64, 1);
    Pair "vqp-rc-read-x32" 64, 32, "RC READ 8 B, batches of 32": vqp_pair::exchange(Rc, Read, 8, 32);
    Pair "vqp-dc-read-x32" 64, 32, "DC READ 8 B, batches of 32": vqp_pair::exchange(Dci, Read, 8, 32);
    Pair "vqp-rc-write-x32" 64, 32, "RC WRITE 64 B, batches of 32":
        vqp_pair::exchange(Rc, Write, 64, 32);
    Pair "vqp-dc-write-x32" 64, 32, "DC WRITE 64 B, batches of 32":
        vqp_pair::exchange(Dci, Write, 64, 32);
    Pair "vqp-rc-send-x32" 64, 32, "RC SEND 64 B, batches of 32":
        vqp_pair::exchange(Rc, Send, 64, 32);
    Pair "vqp-connect-looked-up" 64, 1, "creating and connecting a VQP, metadata looked up":
        vqp_pair::connect(1, true);
    Pair "vqp-connect-x64" 64, 64, "connecting 64 VQPs at once to a node that is looked up, a VQP":
        vqp_pair::connect(64, false);
    Ring "ring-64" OFTEN, 1, "64 B, each told at once": ring::message(64);
    Control "connect-rc" 64, 1, "creating and connecting an RC QP pair": remote::connect();
}
