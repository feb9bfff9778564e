//! `elver perftest`: the far end of perftest's `ib_write_bw`, `ib_read_bw`, `ib_read_lat` and
//! `ib_send_lat`, or both ends. One QP, RC or what else the test allows.

mod args;
mod load;
mod message;
mod outcome;
mod report;
mod script;

use std::path::Path;

use anyhow::Result;
use elver_console::Failure;
use elver_verbs::{Device, Mtu, RemoteAddr};

pub use args::{PeerTest, PerftestArgs, RX_DEPTH};
use load::Load;
use message::{Keys, RateReport};
use outcome::{Outcome, Setting};

use crate::peers::{
    Connection, PeerQp, PeerTransport, Plan, Remote, Role, Session, peer_address, random_psn,
};

/// Runs `elver perftest`.
///
/// # Errors
///
/// [`Failure::Unusable`] for arguments that do not go together; else a peer that is not there, has another version or
/// does not answer, or a device that fails.
pub fn run(args: &PerftestArgs, capture: Option<&Path>) -> Result<(), Failure> {
    let load = Load::new(args)?;
    let mut session = Session::open(&args.peer, capture)?;
    let own_mtu = session.mtu(args.mtu)?;
    let (setting, outcome) = play(&mut session, args.connection, &load, own_mtu)?;
    report::print(args, &load, &session, &setting, &outcome)
}

/// Both ends' part, from the first word to the last.
fn play(
    session: &mut Session,
    transport: PeerTransport,
    load: &Load,
    own_mtu: Mtu,
) -> Result<(Setting, Outcome)> {
    let agreed = session.agree(own_mtu)?;
    let (size, mtu) = (load.size, agreed.mtu);
    if transport == PeerTransport::Ud {
        let most = mtu.bytes();
        anyhow::ensure!(size <= most, "--size {size} is more than the path MTU of {most}");
    }
    let plan = Plan {
        transport,
        size,
        room: agreed.cycle,
        sends: load.sends(),
        receives: load.receives(),
    };
    let mut qp = PeerQp::open(&mut session.device, &plan)?;
    let device = &session.device;
    let served = device.query_device().max_qp_rd_atom;
    let own = Keys {
        out_reads: if load.test.reads() { served } else { 1 },
        remote: Remote { qpn: qp.qpn, psn: random_psn()?, gid: device.query_gid(0)?.0 },
        rkey: qp.inbox.mr.rkey,
        vaddr: qp.inbox.mr.addr,
    };
    let script = load.test.script();
    let mut theirs = session.shake(&own, "the peer's keys")?;
    for _ in 1..script.before {
        theirs = session.shake(&own, "the peer's keys")?;
    }
    let remote = theirs.remote.checked()?;
    peer_address(remote.gid, session.device.address())?;
    let rd_atomic = theirs.out_reads.min(session.device.query_device().max_qp_init_rd_atom);
    let connection = Connection { mtu, psn: own.remote.psn, rd_atomic };
    qp.connect(&mut session.device, &remote, &connection)?;
    for _ in 0..script.after {
        session.shake(&own, "the keys that say that the peer is connected")?;
    }

    let target = RemoteAddr { addr: theirs.vaddr, rkey: theirs.rkey };
    let client = session.role == Role::Client;
    let mut outcome = match load.test {
        PeerTest::SendLat => Outcome::Latency(load::send_latency(session, &qp, load)?),
        _ if !client => Outcome::Served,
        PeerTest::ReadLat => Outcome::Latency(load::read_latency(session, &qp, load, target)?),
        PeerTest::WriteBw | PeerTest::ReadBw => {
            Outcome::Rate(load::rate(session, &qp, load, target, &agreed)?)
        }
    };
    if script.reports {
        session.shake(&own, "the keys that say that the client is done")?;
        let ours = match &outcome {
            Outcome::Rate(report) => *report,
            _ => RateReport::default(),
        };
        let told = session.report(&ours)?;
        if !client {
            outcome = Outcome::Rate(told);
        }
    }
    session.part(&own)?;
    Ok((Setting { peer_version: agreed.version, mtu, own, theirs }, outcome))
}
