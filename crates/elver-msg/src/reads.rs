//! Long messages, READ from their sender's memory into the receiver's.

use std::collections::{BTreeMap, VecDeque};

use elver::{
    Completed, ConnectOptions, Connecting, Cq, Error, Gid, Payload as WrPayload, RemoteAddr,
    SendFlags, SendOp, SendWr, Session, Vqp, VqpOptions, Wc,
};

use crate::Region;
use crate::protocol::ReadOrder;

/// READs under way to one rank.
const READS_MAX: u32 = 16;
/// Most bytes of one of them.
const READ_BYTES_MAX: u64 = 16 << 20;

/// All READs of a rank. To each rank that it READs from it has a VQP of its own, so that memory which cannot be READ
/// costs nobody else anything.
pub(crate) struct Reads {
    session: Session,
    cq: Cq,
    chunk: u64,
    lanes: BTreeMap<u32, Lane>,
    /// Of ranks that are lost, or whose memory could not be READ: until what is under way is over, which writes into a
    /// receiver's memory. Nothing more is posted there.
    dying: Vec<Lane>,
    /// What came of READs, and was not told yet.
    came: VecDeque<Came>,
}

struct Lane {
    vqp: Vqp,
    /// Until it is connected.
    connecting: Option<Connecting>,
    jobs: VecDeque<Job>,
    /// Bytes of the READs under way, which complete in order.
    under_way: VecDeque<u64>,
}

struct Job {
    order: ReadOrder,
    into: Region,
    posted: u64,
    done: u64,
}

/// What came of READs.
pub(crate) enum Came {
    /// All of a message is here.
    Done(ReadOrder),
    /// It cannot begin: this node gives no connection, which says nothing of the rank.
    Unable(ReadOrder),
    /// A rank's memory cannot be READ.
    Failed(u32, Error),
    /// It is over without its message, of a rank that was lost or had failed.
    Ended(ReadOrder),
}

impl Reads {
    pub(crate) fn new(session: &Session) -> Reads {
        let chunk = session.limits().message_bytes.clamp(1, READ_BYTES_MAX);
        let (session, cq) = (session.clone(), session.create_cq());
        Reads {
            session,
            cq,
            chunk,
            lanes: BTreeMap::new(),
            dying: Vec::new(),
            came: VecDeque::new(),
        }
    }

    /// Begins to READ from a rank at a node.
    pub(crate) fn start(&mut self, order: ReadOrder, gid: Gid, into: Region) -> Result<(), Error> {
        if !self.lanes.contains_key(&order.peer) {
            match self.connect(gid) {
                Ok(lane) => drop(self.lanes.insert(order.peer, lane)),
                Err(_) => {
                    self.came.push_back(Came::Unable(order));
                    return Ok(());
                }
            }
        }
        let Some(lane) = self.lanes.get_mut(&order.peer) else { return Ok(()) };
        lane.jobs.push_back(Job { order, into, posted: 0, done: 0 });
        lane.post(self.chunk)
    }

    fn connect(&self, gid: Gid) -> Result<Lane, Error> {
        let options = VqpOptions { max_send_wr: READS_MAX, ..VqpOptions::default() };
        let vqp = self.session.create_vqp_on(options, &self.cq)?;
        let connecting = Some(vqp.qconnect_start(gid, 0, ConnectOptions::default())?);
        Ok(Lane { vqp, connecting, jobs: VecDeque::new(), under_way: VecDeque::new() })
    }

    /// A connection that READs wait for.
    pub(crate) fn connecting(&self) -> Option<&Connecting> {
        self.lanes.values().find_map(|lane| lane.connecting.as_ref())
    }

    /// Whether any is under way.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.came.is_empty()
            && self.dying.is_empty()
            && self.lanes.values().all(|lane| lane.jobs.is_empty())
    }

    /// Goes on with those whose connection has come about, and with none of those for which there will be none.
    fn go_on(&mut self) -> Result<Option<Came>, Error> {
        let mut refused = None;
        for (rank, lane) in &mut self.lanes {
            let connected = lane.connecting.as_ref().map(Connecting::poll);
            match connected {
                None | Some(Ok(None)) => {}
                Some(Ok(Some(_))) => {
                    lane.connecting = None;
                    if let Err(error) = lane.post(self.chunk) {
                        return Ok(Some(Came::Failed(*rank, error)));
                    }
                }
                Some(Err(Error::Refused { .. })) => refused = Some(*rank),
                Some(Err(error)) => return Err(error),
            }
        }
        if let Some(lane) = refused.and_then(|rank| self.lanes.remove(&rank)) {
            self.came.extend(lane.jobs.into_iter().map(|job| Came::Unable(job.order)));
        }
        Ok(self.came.pop_front())
    }

    /// What came of one, if anything did.
    pub(crate) fn poll(&mut self) -> Result<Option<Came>, Error> {
        if let Some(came) = self.go_on()? {
            return Ok(Some(came));
        }
        let mut wcs = [Wc::default()];
        while self.cq.poll(&mut wcs)? > 0 {
            let [wc] = wcs;
            let of = self.lanes.iter_mut().find(|(_, lane)| lane.vqp.id() == wc.qp_num);
            let Some((rank, lane)) = of else {
                if let Some(order) = self.dies(wc.qp_num) {
                    return Ok(Some(Came::Ended(order)));
                }
                continue;
            };
            let rank = *rank;
            let done = lane.completed();
            let read = wc.succeeded().map(drop);
            let is_read = read.is_ok();
            self.came.extend(done.map(|order| match is_read {
                true => Came::Done(order),
                // Its rank is lost for this.
                false => Came::Ended(order),
            }));
            if let Err(error) = read.and_then(|()| lane.post(self.chunk)) {
                return Ok(Some(Came::Failed(rank, error)));
            }
            if let Some(came) = self.came.pop_front() {
                return Ok(Some(came));
            }
        }
        let failed = self.lanes.iter().find_map(|(rank, lane)| {
            let is_busy = !lane.jobs.is_empty();
            is_busy.then(|| lane.vqp.failure()).flatten().map(|error| (*rank, error))
        });
        Ok(failed.map(|(rank, error)| Came::Failed(rank, error)))
    }

    /// Begins nothing more of what was to be READ from a rank. What is under way ends by itself ([`Came::Ended`]).
    pub(crate) fn forget(&mut self, rank: u32) {
        let Some(mut lane) = self.lanes.remove(&rank) else { return };
        let is_over = |job: &Job| job.posted == job.done;
        let over = lane.jobs.iter().filter(|job| is_over(job)).map(|job| Came::Ended(job.order));
        self.came.extend(over);
        lane.jobs.retain(|job| !is_over(job));
        if !lane.under_way.is_empty() {
            self.dying.push(lane);
        }
    }

    /// A READ of a lane that dies is over; its message, if that was the last of it.
    fn dies(&mut self, vqp: u32) -> Option<ReadOrder> {
        let at = self.dying.iter().position(|lane| lane.vqp.id() == vqp)?;
        let lane = &mut self.dying[at];
        let bytes = lane.under_way.pop_front()?;
        let job = lane.jobs.front_mut()?;
        job.done += bytes;
        let over = if job.done == job.posted { lane.jobs.pop_front() } else { None };
        if lane.under_way.is_empty() {
            self.dying.swap_remove(at);
        }
        over.map(|job| job.order)
    }
}

impl Lane {
    /// Posts what fits.
    fn post(&mut self, chunk: u64) -> Result<(), Error> {
        let Lane { vqp, connecting, jobs, under_way } = self;
        if connecting.is_some() {
            return Ok(());
        }
        for job in jobs {
            while job.posted < job.order.len && under_way.len() < READS_MAX as usize {
                let bytes = (job.order.len - job.posted).min(chunk);
                let remote = job.order.remote;
                let addr = remote.addr.wrapping_add(job.posted);
                let sges = [job.into.sge(job.posted, bytes as u32)];
                vqp.post_send(&[SendWr {
                    wr_id: 0,
                    op: SendOp::Read(RemoteAddr { addr, rkey: remote.rkey }),
                    flags: SendFlags::SIGNALED,
                    payload: WrPayload::Sges(&sges),
                    dest: None,
                }])?;
                under_way.push_back(bytes);
                job.posted += bytes;
            }
        }
        Ok(())
    }

    /// The oldest READ has completed; its message, if that was the last of it.
    fn completed(&mut self) -> Option<ReadOrder> {
        let bytes = self.under_way.pop_front()?;
        let job = self.jobs.front_mut()?;
        job.done += bytes;
        if job.done < job.order.len {
            return None;
        }
        self.jobs.pop_front().map(|job| job.order)
    }
}
