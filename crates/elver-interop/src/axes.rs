//! What the table is made of.

use std::fmt;

use clap::ValueEnum;
use elver_verbs::{Mtu, QpType};
use serde::Serialize;

/// Who asks, seen from our side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Role {
    Requester,
    Responder,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Transport {
    Rc,
    Uc,
    Ud,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Op {
    Send,
    SendImm,
    SendInv,
    Write,
    WriteImm,
    Read,
    CmpSwp,
    FetchAdd,
}

/// Which way a fault strikes, seen from our side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Way {
    In,
    Out,
}

/// What the link does to RoCE packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Fault {
    None,
    Loss(Way),
    Reorder(Way),
    Duplicate(Way),
}

/// One cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) transport: Transport,
    pub(crate) mtu: Mtu,
    pub(crate) fault: Fault,
    pub(crate) role: Role,
    pub(crate) op: Op,
    pub(crate) size: u32,
}

/// Which cells a run covers.
#[derive(Clone, Debug)]
pub(crate) struct Axes {
    pub(crate) mtus: Vec<Mtu>,
    pub(crate) faults: Vec<Fault>,
    pub(crate) large: Vec<u32>,
}

impl Axes {
    /// Everything.
    pub(crate) fn full() -> Axes {
        Axes {
            mtus: Mtu::ALL.to_vec(),
            faults: Fault::ALL.to_vec(),
            large: vec![64 << 10, 1 << 20],
        }
    }

    /// A selection for every change: the smallest and a usual path MTU, loss and no fault.
    pub(crate) fn reduced() -> Axes {
        Axes {
            mtus: vec![Mtu::Mtu256, Mtu::Mtu1024],
            faults: vec![Fault::None, Fault::Loss(Way::In), Fault::Loss(Way::Out)],
            large: vec![64 << 10],
        }
    }

    /// Message sizes for an operation at a path MTU.
    pub(crate) fn sizes(&self, transport: Transport, op: Op, mtu: Mtu) -> Vec<u32> {
        let mtu = mtu.bytes();
        match (transport, op) {
            (_, Op::CmpSwp | Op::FetchAdd) => vec![8],
            (Transport::Ud, _) => vec![0, 1, mtu - 1, mtu],
            _ => [0, 1, mtu - 1, mtu, mtu + 1].into_iter().chain(self.large.clone()).collect(),
        }
    }
}

impl Transport {
    pub(crate) const ALL: [Transport; 3] = [Transport::Rc, Transport::Uc, Transport::Ud];

    pub(crate) fn qp_type(self) -> QpType {
        match self {
            Transport::Rc => QpType::Rc,
            Transport::Uc => QpType::Uc,
            Transport::Ud => QpType::Ud,
        }
    }

    /// The operations that it has.
    pub(crate) fn ops(self) -> &'static [Op] {
        match self {
            Transport::Rc => &[
                Op::Send,
                Op::SendImm,
                Op::SendInv,
                Op::Write,
                Op::WriteImm,
                Op::Read,
                Op::CmpSwp,
                Op::FetchAdd,
            ],
            Transport::Uc => &[Op::Send, Op::SendImm, Op::Write, Op::WriteImm],
            Transport::Ud => &[Op::Send, Op::SendImm],
        }
    }
}

impl Cell {
    /// Whether packets go the fault's way at all: over UC and UD nobody answers.
    pub(crate) fn exists(&self) -> bool {
        let data = if self.role == Role::Requester { Way::Out } else { Way::In };
        match self.fault {
            Fault::Loss(way) | Fault::Reorder(way) | Fault::Duplicate(way) => {
                self.transport == Transport::Rc || way == data
            }
            Fault::None => true,
        }
    }
}

impl Role {
    pub(crate) const ALL: [Role; 2] = [Role::Requester, Role::Responder];
}

impl Fault {
    pub(crate) const ALL: [Fault; 7] = [
        Fault::None,
        Fault::Loss(Way::In),
        Fault::Loss(Way::Out),
        Fault::Reorder(Way::In),
        Fault::Reorder(Way::Out),
        Fault::Duplicate(Way::In),
        Fault::Duplicate(Way::Out),
    ];
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::None => "none",
            Fault::Loss(Way::In) => "loss in",
            Fault::Loss(Way::Out) => "loss out",
            Fault::Reorder(Way::In) => "reorder in",
            Fault::Reorder(Way::Out) => "reorder out",
            Fault::Duplicate(Way::In) => "dup in",
            Fault::Duplicate(Way::Out) => "dup out",
        })
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Requester => "requester",
            Role::Responder => "responder",
        })
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Transport::Rc => "RC",
            Transport::Uc => "UC",
            Transport::Ud => "UD",
        })
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Op::Send => "SEND",
            Op::SendImm => "SEND_WITH_IMM",
            Op::SendInv => "SEND_WITH_INV",
            Op::Write => "WRITE",
            Op::WriteImm => "WRITE_WITH_IMM",
            Op::Read => "READ",
            Op::CmpSwp => "CMP_SWP",
            Op::FetchAdd => "FETCH_ADD",
        })
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cell { transport, mtu, fault, role, op, size } = self;
        let mtu = mtu.bytes();
        write!(f, "{transport} {op}, we as {role}, {size} B, path MTU {mtu}, fault: {fault}")
    }
}
