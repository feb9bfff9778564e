//! Which VQPs the heirs of a set have, and where each is connected: what the set's owner named, for all of them, and
//! what he names later for one of them alone.

use elver_core::{ClientId, Core, VqpId};
use elver_portal::{ConnectOptions, Via, VqpOptions};
use elver_soft::SoftDevice;
use elver_verbs::{Class, Gid, Time};

use crate::engine::leases;
use crate::engine::quota::Usage;
use crate::engine::translate::{self, Refused};

/// A VQP that each heir of a set has.
#[derive(Clone, Copy)]
pub(super) struct Planned {
    /// None if each heir may have its own, or none yet.
    pub(super) to: Option<Target>,
    pub(super) options: VqpOptions,
    pub(super) class: Class,
}

/// Where a VQP is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct Target {
    pub(super) gid: Gid,
    pub(super) port: u16,
    pub(super) connect: ConnectOptions,
}

/// Where one heir has those VQPs that its set names no destination for. At most one entry for each of them.
#[derive(Debug, Default)]
pub(super) struct Assignments(Vec<(u32, Target)>);

impl Assignments {
    /// Names the destination of one, or that it has none.
    pub(super) fn set(&mut self, at: u32, to: Option<Target>) {
        self.0.retain(|(of, _)| *of != at);
        self.0.extend(to.map(|to| (at, to)));
    }

    /// It cannot be connected there: the next heir does not wait for it.
    pub(super) fn forget(&mut self, at: u32) {
        self.set(at, None);
    }

    pub(super) fn get(&self, at: u32) -> Option<Target> {
        self.0.iter().find(|(of, _)| *of == at).map(|(_, to)| *to)
    }
}

/// What creating a planned VQP comes to: it goes nowhere, or what backs it if that is known at once.
pub(super) enum Made {
    Idle,
    Connected(Via),
    Connecting,
    Failed(Refused),
    /// It is to have a leased queue pair, and its account may have no more.
    Unpaid(Refused),
}

impl Planned {
    /// WRs of the leased queue pair that it is to have.
    pub(super) fn lease(&self, assigned: Option<Target>, sq_depth: u32) -> Option<u32> {
        let asks = self.to.or(assigned).is_some_and(|to| leases::asks(&to.connect));
        asks.then(|| leases::wrs(self.options.max_send_wr, sq_depth))
    }

    /// Creates the VQP, and begins to connect it if it has a destination, and if it may have a leased queue pair that it is
    /// to have.
    pub(super) fn make(
        &self,
        client: ClientId,
        index: usize,
        assigned: Option<Target>,
        may_lease: impl FnOnce(Usage) -> Result<(), Refused>,
        core: &mut Core<SoftDevice>,
        now: Time,
    ) -> Result<(VqpId, Made), Refused> {
        let vqp = core.vqp_create(client, translate::vqp_init(self.options, self.class))?;
        let Some(Target { gid, port, connect }) = self.to.or(assigned) else {
            return Ok((vqp, Made::Idle));
        };
        if let Some(wrs) = self.lease(assigned, core.config().sq_depth)
            && let Err(refused) = may_lease(Usage::leased(wrs))
        {
            return Ok((vqp, Made::Unpaid(refused)));
        }
        let made = match core.qconnect(client, vqp, gid, port, connect, index as u64, now) {
            Ok(Some(via)) => Made::Connected(via),
            Ok(None) => Made::Connecting,
            Err(error) => Made::Failed(error.into()),
        };
        Ok((vqp, made))
    }
}
