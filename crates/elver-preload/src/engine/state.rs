//! What the lock protects: the device, and the program's objects that its events belong to.

use std::collections::HashMap;
use std::sync::Arc;

use elver_soft::SoftDevice;
use elver_verbs::{Ah, Cq, Device, Mr, Mw, Pd, Qp, Srq, Time, VerbsError, Wc};

use crate::channel::CqObject;
use crate::cm::state::Cm;
use crate::direct::{Direct, Hub};
use crate::faults::Posts;
use crate::moderation::Moderated;
use crate::outage::Outage;
use crate::parents::Parents;
use crate::service::Service;
use crate::timed::{Stamp, Timed};
use crate::told::Told;
use crate::wishes::Wishes;
use crate::xrc_table::Xrc;

/// What the lock protects.
pub(crate) struct State {
    pub(crate) device: SoftDevice,
    /// The program's objects that events belong to.
    pub(crate) cqs: HashMap<Cq, CqObject>,
    /// Those whose completions are stamped.
    pub(crate) timed: HashMap<Cq, Timed>,
    /// Those whose events wait.
    pub(crate) moderated: Moderated,
    pub(crate) qps: HashMap<Qp, Told>,
    pub(crate) srqs: HashMap<Srq, Told>,
    /// What can be imported.
    pub(crate) pds: HashMap<Pd, Told>,
    pub(crate) mrs: HashMap<Mr, Region>,
    pub(crate) mws: HashMap<Mw, Told>,
    pub(crate) ahs: HashMap<Ah, Told>,
    /// What the device knows nothing of, by its address: channels, thread and parent domains, and what was imported.
    pub(crate) bare: HashMap<usize, Told>,
    pub(crate) parents: Parents,
    /// What means nothing on Ethernet of the addresses of QPs, as the program gave it.
    pub(crate) services: HashMap<Qp, Service>,
    pub(crate) xrc: Xrc,
    /// rdma_cm, once the program has opened it.
    pub(crate) cm: Option<Box<Cm>>,
    /// Something came for it that it has not taken.
    pub(super) cm_arrived: bool,
    pub(crate) direct: Direct,
    /// What befalls posts, if anything.
    pub(crate) posts: Option<Box<Posts>>,
    /// What befalls the port, and whom that is told: contexts, without an element.
    pub(super) outage: Option<Box<Outage>>,
    pub(crate) contexts: Vec<Told>,
}

/// A region, as who imports it is told of it.
pub(crate) struct Region {
    /// The program's object, and its context.
    pub(crate) of: Told,
    pub(crate) pd: Pd,
    pub(crate) length: usize,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
    /// Whether its pages must be such as the program may write.
    pub(crate) writable: bool,
    pub(crate) kind: Kind,
}

/// What memory a region is of.
pub(crate) enum Kind {
    /// The program's, which stays mapped.
    Own,
    /// The program's, which comes and goes: from this address on.
    OnDemand { addr: u64 },
    /// A device memory, by its number.
    DeviceMemory(u32),
}

impl State {
    pub(super) fn new(device: SoftDevice, hub: Option<Arc<Hub>>, wishes: &Wishes) -> State {
        let outage = wishes.outage.map(|plan| Box::new(Outage::new(plan, elver_soft::now())));
        State {
            direct: Direct::new(hub, device.address()),
            device,
            cqs: HashMap::new(),
            timed: HashMap::new(),
            moderated: Moderated::default(),
            qps: HashMap::new(),
            srqs: HashMap::new(),
            pds: HashMap::new(),
            mrs: HashMap::new(),
            mws: HashMap::new(),
            ahs: HashMap::new(),
            bare: HashMap::new(),
            parents: Parents::default(),
            services: HashMap::new(),
            xrc: Xrc::default(),
            cm: None,
            cm_arrived: false,
            posts: Posts::new(wishes.posts),
            outage,
            contexts: Vec::new(),
        }
    }

    /// Takes completions of a CQ, and drives the device if there are none.
    pub(crate) fn poll(&mut self, cq: Cq, wcs: &mut [Wc]) -> Result<usize, VerbsError> {
        // Nearly no program has any.
        if self.timed.is_empty() || !self.timed.contains_key(&cq) {
            return self.device.poll_cq(cq, wcs);
        }
        let mut count = 0;
        while count < wcs.len() {
            let Some((wc, _)) = self.poll_timed(cq) else { break };
            wcs[count] = wc;
            count += 1;
        }
        Ok(count)
    }

    /// Takes one completion of a CQ that stamps them.
    pub(crate) fn poll_timed(&mut self, cq: Cq) -> Option<(Wc, Stamp)> {
        let timed = self.timed.get_mut(&cq)?;
        timed.take().or_else(|| {
            self.device.progress();
            timed.stamp(&mut self.device, cq);
            timed.take()
        })
    }

    /// A program is about to ask for an event of a CQ.
    pub(crate) fn asked(&mut self, cq: Cq) {
        let State { timed, moderated, device, .. } = self;
        moderated.ask(cq, || {
            timed.get_mut(&cq).map_or(0, |timed| {
                timed.stamp(device, cq);
                timed.seen()
            })
        });
    }

    /// Whether the port is up, if it goes down on demand.
    pub(crate) fn port_on_demand(&self) -> Option<bool> {
        self.outage.as_ref().map(|outage| outage.is_up())
    }

    /// When a timer is due, the device's or the communication manager's.
    pub(super) fn due(&self) -> Option<Time> {
        if self.cm_arrived {
            return Some(Time::ZERO);
        }
        let connecting = self.cm.as_ref().and_then(|cm| cm.due());
        let outage = self.outage.as_ref().and_then(|outage| outage.due());
        let events = self.moderated.due();
        self.device.due().into_iter().chain(connecting).chain(outage).chain(events).min()
    }
}
