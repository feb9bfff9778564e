//! Operations through a VQP between two embedded nodes.

use anyhow::Result;
use elver_console::Failure;
use elver_core::{ConnectOptions, Via, VqpId, VqpInit};
use elver_node::config::Config;
use elver_testbed::node::{self, Node, Region};
use elver_testbed::node_pair::{self, Far};
use elver_testbed::pair::Placement;
use elver_testbed::sample::Sample;
use elver_verbs::{RecvWr, SendOp};

use crate::args::DataOp;
use crate::window::{Step, Window};

/// The port that takes messages.
const PORT: u16 = 9;
/// Receives that the far end has posted, and those that it posts again at a time.
const RECEIVES: u32 = 1024;
const REPOST: usize = 32;

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VqpLoad {
    pub(crate) op: DataOp,
    pub(crate) size: u32,
    pub(crate) window: Window,
}

/// The end that takes messages.
struct Sink {
    vqp: VqpId,
    region: Region,
    owed: usize,
}

/// Measures through a VQP to the meta server. Where `rc`, an RC QP is made first; `check`
/// then says whether what backs it will do.
pub(crate) fn measure(
    placement: Placement,
    config: &Config,
    load: &VqpLoad,
    rc: bool,
    check: impl Fn(Via) -> Result<()> + Send,
) -> Result<Sample, Failure> {
    node_pair::run(
        placement,
        config,
        |node| Sink::open(node, load.op == DataOp::Send),
        Sink::serve,
        |node, far| {
            let vqp = connect(node, far, load, rc, check)?;
            post_and_poll(node, vqp, far, load)
        },
    )
}

fn connect(
    node: &mut Node,
    far: &Far,
    load: &VqpLoad,
    rc: bool,
    check: impl Fn(Via) -> Result<()>,
) -> Result<VqpId> {
    let init = VqpInit { max_send_wr: load.window.depth.max(16), ..VqpInit::default() };
    if rc {
        node.link_to(far.meta, PORT)?;
    }
    let vqp = node.vqp(init)?;
    check(node.connect(vqp, far.meta, PORT, ConnectOptions::default())?)?;
    Ok(vqp)
}

fn post_and_poll(node: &mut Node, vqp: VqpId, far: &Far, load: &VqpLoad) -> Result<Sample> {
    let region = node.region(u64::from(load.size.max(8)))?;
    let sges = [region.sge(load.size)];
    let op = match load.op {
        DataOp::Read => SendOp::Read(far.remote),
        DataOp::Write => SendOp::Write(far.remote),
        DataOp::Send => SendOp::Send,
    };
    let wrs = load.window.batch(op, &sges);
    let mut completions = node::blank::<32>();
    load.window.run(|step| match step {
        Step::Post => {
            node.post(vqp, &wrs)?;
            Ok(0)
        }
        Step::Take => {
            let found = node.take(&mut completions);
            completions[..found].iter().try_for_each(node::succeeded)?;
            Ok(found)
        }
    })
}

impl Sink {
    fn open(node: &mut Node, takes_messages: bool) -> Result<Option<Sink>> {
        if !takes_messages {
            return Ok(None);
        }
        let vqp = node.vqp(VqpInit { max_recv_wr: RECEIVES, ..VqpInit::default() })?;
        node.bind(vqp, PORT)?;
        let region = node.region(node_pair::REGION)?;
        let mut sink = Sink { vqp, region, owed: RECEIVES as usize };
        sink.post(node)?;
        Ok(Some(sink))
    }

    fn serve(node: &mut Node, sink: &mut Option<Sink>) -> Result<()> {
        let Some(sink) = sink else { return Ok(()) };
        let mut completions = node::blank::<REPOST>();
        loop {
            let found = node.taken(&mut completions);
            completions[..found].iter().try_for_each(node::succeeded)?;
            sink.owed += found;
            sink.post(node)?;
            // A round of the node may bring more than this takes at once.
            if found < REPOST {
                return Ok(());
            }
        }
    }

    fn post(&mut self, node: &mut Node) -> Result<()> {
        let sges = [self.region.sge(node_pair::REGION as u32)];
        let wrs = [RecvWr { wr_id: 0, sges: &sges }; REPOST];
        while self.owed >= REPOST {
            node.post_recv(self.vqp, &wrs)?;
            self.owed -= REPOST;
        }
        Ok(())
    }
}
