//! What a process asks about its sets: it prepares one, says what its sessions are to have, and seals it.

use elver_core::Core;
use elver_portal::{
    ARENA_BYTES, Answer, Command, HeirsLayout, RefusalCode, VQPS_PER_HEIR_MAX, VqpOptions,
};
use elver_soft::SoftDevice;
use elver_verbs::{AccessFlags, Gid, Time};

use super::plan::{Planned, Target};
use super::{Heir, Parent, Set, Sets};
use crate::engine::maker::Maker;
use crate::engine::orders::SetFile;
use crate::engine::quota::{Quotas, Usage};
use crate::engine::sessions::Sessions;
use crate::engine::translate::Refused;

/// Heirs of a set.
pub(super) const HEIRS_MAX: u32 = 65_536;
/// Sets of a session: each has a descriptor of the node's.
pub(super) const SETS_MAX: usize = 64;

/// A command about sets.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) enum SetOrder {
    Prepare { heirs: u32, vqps: u32, mr: (u64, AccessFlags) },
    Vqp { set: u32, to: Option<Target>, options: VqpOptions },
    Assign { set: u32, heir: u32, at: u32, to: Option<Target> },
    Seal { set: u32, addr: u64, must_connect: bool },
    Disown { set: u32 },
}

impl SetOrder {
    /// The command as an order, if it is one.
    pub(in crate::engine) fn of(command: &Command<'_>) -> Option<SetOrder> {
        Some(match *command {
            Command::Prepare { heirs, vqps, mr_len, access } => {
                SetOrder::Prepare { heirs, vqps, mr: (mr_len, access) }
            }
            Command::PrepareVqp { set, gid, port, connect, options } => {
                SetOrder::Vqp { set, to: Some(Target { gid, port, connect }), options }
            }
            Command::PrepareUnassigned { set, options } => SetOrder::Vqp { set, to: None, options },
            Command::Assign { set, heir, at, gid, port, connect } => {
                let to = (gid != Gid::default()).then_some(Target { gid, port, connect });
                SetOrder::Assign { set, heir, at, to }
            }
            Command::Seal { set, addr, must_connect } => SetOrder::Seal { set, addr, must_connect },
            Command::Disown { set } => SetOrder::Disown { set },
            _ => return None,
        })
    }
}

/// What an order comes to.
pub(in crate::engine) enum Ordered {
    Answer(Answer<'static>),
    /// The answer comes when the file, or the heirs, are there.
    Later,
    /// It is done; a request that waited for the set is to be answered behind it.
    Disowned {
        waited: Option<u32>,
    },
}

impl Sets {
    /// Does what a process asks about its sets.
    pub(in crate::engine) fn order(
        &mut self,
        order: SetOrder,
        parent: Parent,
        request: u32,
        sessions: &mut Sessions,
        (core, maker): (&mut Core<SoftDevice>, &Maker),
        now: Time,
    ) -> Result<Ordered, Refused> {
        match order {
            SetOrder::Prepare { heirs, vqps, mr } => {
                let quotas = &mut sessions.quotas;
                self.begin((parent, request), (heirs, vqps, mr), quotas, maker)
            }
            SetOrder::Vqp { set, to, options } => {
                let class = sessions.quotas.class_of(
                    parent.customer,
                    (parent.uid, parent.gid),
                    options.class,
                )?;
                let set = self.own(set, parent.token)?;
                if set.sealed || set.plan.len() as u32 >= set.vqps {
                    let text = format!("the set is sealed, or has its {} VQPs already", set.vqps);
                    return Err(Refused::new(RefusalCode::State, text));
                }
                set.plan.push(Planned { to, options, class });
                Ok(Ordered::Answer(Answer::Done))
            }
            SetOrder::Assign { set: number, heir, at, to } => {
                let set = self.own(number, parent.token)?;
                let is_open = set.plan.get(at as usize).is_some_and(|vqp| vqp.to.is_none());
                let heir = set.heirs.get_mut(heir as usize).filter(|_| is_open);
                let heir = heir.ok_or_else(|| {
                    let text = format!(
                        "set {number} has no such session yet, or VQP {at} of its {} was prepared with a destination",
                        set.vqps
                    );
                    Refused::new(RefusalCode::State, text)
                })?;
                heir.assigned.set(at, to);
                Ok(Ordered::Answer(Answer::Done))
            }
            SetOrder::Seal { set: number, addr, must_connect } => {
                let set = self.own(number, parent.token)?;
                let is_there = set.files.is_some();
                if set.sealed || !is_there || set.plan.len() as u32 != set.vqps {
                    let text = format!(
                        "the set is sealed already, or not there, or {} of its {} VQPs were named",
                        set.plan.len(),
                        set.vqps
                    );
                    return Err(Refused::new(RefusalCode::State, text));
                }
                (set.sealed, set.sealing, set.addr) = (true, Some(request), addr);
                set.must_connect = must_connect;
                set.heirs = (0..set.layout.heirs).map(|_| Heir::paid()).collect();
                let all = 0..set.layout.heirs;
                self.vacant.extend(all.map(|heir| (number, heir)));
                Ok(Ordered::Later)
            }
            SetOrder::Disown { set } => {
                self.own(set, parent.token)?;
                Ok(Ordered::Disowned { waited: self.dissolve(set, sessions, core, now) })
            }
        }
    }

    /// Takes what the set needs off its user's quota, and has its file made.
    fn begin(
        &mut self,
        (parent, request): (Parent, u32),
        (heirs, vqps, mr): (u32, u32, (u64, AccessFlags)),
        quotas: &mut Quotas,
        maker: &Maker,
    ) -> Result<Ordered, Refused> {
        if heirs == 0 || heirs > HEIRS_MAX || vqps > VQPS_PER_HEIR_MAX || mr.0 > ARENA_BYTES {
            let text = format!(
                "{heirs} sessions with {vqps} VQPs and {} bytes each; there are 1 to {HEIRS_MAX}, with at \
                 most {VQPS_PER_HEIR_MAX} VQPs and {ARENA_BYTES} bytes: a child allocates more itself",
                mr.0
            );
            return Err(Refused::new(RefusalCode::OutOfRange, text));
        }
        if parent.pid.is_none() {
            let text = "the process is none that the node can see, nor would its children be: it runs \
                        in another PID namespace";
            return Err(Refused::new(RefusalCode::Permission, text));
        }
        let own = self.all.values().filter(|set| set.parent.token == parent.token);
        if own.count() >= SETS_MAX {
            let text = format!(
                "the session has {SETS_MAX} sets already; end some, or prepare more sessions in each"
            );
            return Err(Refused::new(RefusalCode::Limit, text));
        }
        let layout = HeirsLayout { heirs, vqps };
        let (account, bytes) = (parent.customer.account, layout.bytes());
        let held = (!quotas.is_exempt(account)).then(|| quotas.of(account).bytes);
        let each = Usage::heir(vqps, mr.0 > 0);
        let all = each.times(heirs).plus(Usage::file(bytes));
        quotas.take(account, all)?;
        while self.all.contains_key(&self.last) {
            self.last = self.last.wrapping_add(1);
        }
        let number = self.last;
        let token = parent.token;
        let file = SetFile { set: number, token, request, account, bytes, held };
        if let Err(error) = maker.make_file(file) {
            quotas.give_back(account, all);
            return Err(error.into());
        }
        self.last = self.last.wrapping_add(1);
        let set = Set {
            parent,
            files: None,
            layout,
            vqps,
            mr,
            each,
            addr: 0,
            plan: Vec::new(),
            preparing: Some(request),
            sealing: None,
            sealed: false,
            must_connect: true,
            heirs: Vec::new(),
        };
        self.all.insert(number, set);
        Ok(Ordered::Later)
    }

    /// A set of the process that asks.
    fn own(&mut self, set: u32, token: u64) -> Result<&mut Set, Refused> {
        let own = self.all.get_mut(&set).filter(|set| set.parent.token == token);
        own.ok_or_else(|| {
            let text = format!("this session has prepared no set of number {set}");
            Refused::new(RefusalCode::State, text)
        })
    }
}
