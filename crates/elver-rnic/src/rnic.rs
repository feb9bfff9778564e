use alloc::collections::VecDeque;
use alloc::vec::Vec;

use elver_random::{Rng, Seed};
use elver_verbs::{
    AsyncEvent, Cq, DeviceAttr, Gid, Memory, ObjectKind, PortAttr, PortState, Time, VerbsError,
};
use elver_verbs::{AtomicCap, Mtu, Qp, QpState, TransportCaps};

use crate::MAX_MESSAGE;
use crate::config::Config;
use crate::counters::{Counters, DropReason};
use crate::groups::Groups;
use crate::hw::{CutOff, Hw};
use crate::qp::QueuePair;
use crate::qp_core::QpCore;
use crate::table::Table;

/// A software RNIC over memory of kind `M`.
///
/// Its methods are the calls of [`elver_verbs::Device`] under their own names; those that start
/// something take the time. See the crate's documentation for how to drive it.
#[derive(Debug)]
pub struct Rnic<M> {
    pub(crate) hw: Hw<M>,
    pub(crate) qps: Table<QueuePair>,
    /// The id of the QP that peers know as QP 1.
    pub(crate) general_services: Option<u32>,
    pub(crate) groups: Groups,
    /// QPs that may have something to send, in turn.
    pub(crate) active: VecDeque<u32>,
    /// Packets that the QP at the front has sent in its turn.
    pub(crate) turn_sent: u32,
    /// Bytes that were copied within the device since what is due by the clock was done last.
    pub(crate) copied: u64,
    /// CNPs that wait to be sent.
    pub(crate) notifications: VecDeque<crate::transmit::Notification>,
}

impl<M: Memory> Rnic<M> {
    /// A device without objects. `seed` is where its QPNs, keys and session numbers come from: 32
    /// bytes of the operating system's generator, unless a run must replay.
    ///
    /// # Errors
    ///
    /// What [`Config::validate`] finds.
    pub fn new(config: Config, seed: impl Into<Seed>) -> Result<Rnic<M>, VerbsError> {
        config.validate()?;
        Ok(Rnic {
            qps: Table::new(ObjectKind::Qp, config.max_qp, "max_qp"),
            general_services: None,
            groups: Groups::default(),
            active: VecDeque::new(),
            turn_sent: 0,
            copied: 0,
            notifications: VecDeque::new(),
            hw: Hw::new(config, Rng::new(seed)),
        })
    }

    /// What it was made with.
    pub fn config(&self) -> &Config {
        &self.hw.config
    }

    /// What it has done and seen.
    pub fn counters(&self) -> &Counters {
        &self.hw.counters
    }

    /// Counts a datagram that the driver dropped.
    pub fn count_drop(&mut self, reason: DropReason) {
        match reason {
            DropReason::Driver => self.hw.counters.drop_driver += 1,
            DropReason::Oversized => self.hw.counters.drop_oversized += 1,
        }
    }

    /// Capabilities and limits.
    pub fn query_device(&self) -> DeviceAttr {
        let config = &self.hw.config;
        DeviceAttr {
            name: config.name.clone(),
            fw_ver: env!("CARGO_PKG_VERSION").into(),
            node_guid: config.node_guid,
            max_mr_size: config.max_mr_size,
            max_qp: config.max_qp,
            max_qp_wr: config.max_qp_wr,
            max_sge: config.max_sge,
            max_inline_data: config.max_inline_data,
            max_cq: config.max_cq,
            max_cqe: config.max_cqe,
            max_mr: config.max_mr,
            max_pd: config.max_pd,
            max_mw: config.max_mr,
            max_ah: config.max_ah,
            max_srq: config.max_srq,
            max_srq_wr: config.max_srq_wr,
            max_srq_sge: config.max_sge,
            max_qp_rd_atom: config.max_rd_atomic,
            max_qp_init_rd_atom: config.max_rd_atomic,
            atomic_cap: AtomicCap::Glob,
            phys_port_cnt: 1,
            local_ca_ack_delay: 15,
            transports: TransportCaps { rc: true, uc: true, ud: true, xrc: true, dc: true },
            max_dci_streams: 1 << config.log_max_dci_streams,
            max_dci_errored_streams: 1 << config.log_max_dci_streams,
            max_dc_contexts: config.max_dc_contexts,
            max_mcast_grp: config.max_mcast_grp,
            max_mcast_qp_attach: config.max_mcast_qp_attach,
        }
    }

    /// The port.
    pub fn query_port(&self) -> PortAttr {
        PortAttr {
            state: PortState::Active,
            max_mtu: Mtu::Mtu4096,
            active_mtu: self.hw.config.active_mtu,
            gid_tbl_len: self.hw.config.addresses.len() as u32,
            pkey_tbl_len: 1,
            max_msg_sz: MAX_MESSAGE,
            bad_pkey_cntr: self.hw.counters.drop_pkey as u32,
            qkey_viol_cntr: self.hw.counters.drop_qkey as u32,
        }
    }

    /// An entry of the GID table.
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`] if the table has no such entry.
    pub fn query_gid(&self, index: u8) -> Result<Gid, VerbsError> {
        let address = self.hw.config.addresses.get(usize::from(index));
        let missing = VerbsError::InvalidHandle { kind: ObjectKind::Gid, handle: u32::from(index) };
        address.map(|address| Gid::from(*address)).ok_or(missing)
    }

    /// Takes an asynchronous event, oldest first.
    pub fn poll_async_event(&mut self) -> Option<AsyncEvent> {
        self.hw.events.pop_front()
    }

    /// Takes a completion event: the CQ that has something to poll.
    pub fn poll_cq_event(&mut self) -> Option<Cq> {
        self.hw.cq_events.pop_front()
    }

    /// When [`Rnic::handle_timeout`] is due, if nothing happens before.
    #[inline]
    pub fn poll_timeout(&self) -> Option<Time> {
        self.hw.timers.next()
    }

    /// The driver has handed in all packets that had come before `now`: it asked for more after that
    /// time, and there was none.
    ///
    /// A DCT forgets initiators that were silent, and only what was said to have been taken counts as
    /// silence. After a suspend, or when its process did not run, packets may wait that an initiator
    /// sent long ago, some for the second time: a context that looks idle by the clock alone may be
    /// the one that knows them for executed. So the time from one call to the next counts if it is an eighth of
    /// [`Config::dc_context_idle_ns`] at most, and without this call no context is given up.
    #[inline]
    pub fn caught_up(&mut self, now: Time) {
        self.hw.caught_up(now);
    }

    /// Does what is due: retransmissions, RNR waits, pacing.
    pub fn handle_timeout(&mut self, now: Time) {
        self.copied = 0;
        while let Some((at, qpn, lane)) = self.hw.timers.pop_due(now) {
            let qpn = self.named(qpn);
            let Some(queue_pair) = self.qps.get_mut(qpn) else {
                continue;
            };
            let woken = queue_pair
                .with_lane(usize::from(lane), &mut self.hw, now, |lane, env| lane.on_timer(env, at))
                .unwrap_or(false);
            if woken {
                self.run_local(now, qpn, usize::from(lane));
                self.schedule(qpn);
            }
        }
        self.stop_cut_off(now);
    }

    /// Whether what [`Rnic::poll_transmit`] would write next is of a QP that takes short turns
    /// ([`elver_verbs::Device::take_short_turns`]), so that what came should be looked at before.
    #[inline]
    pub fn gives_way(&self) -> bool {
        let is_short = |front: &u32| self.qps.get(*front).is_some_and(|qp| qp.short_turns);
        self.notifications.is_empty() && self.active.front().is_some_and(is_short)
    }

    /// Puts a QP in line to send.
    #[inline(always)] // Most are in line already.
    pub(crate) fn schedule(&mut self, qpn: u32) {
        if let Some(queue_pair) = self.qps.get_mut(qpn)
            && !queue_pair.scheduled
        {
            queue_pair.scheduled = true;
            let short = queue_pair.short_turns;
            // Who takes short turns gives way where its turn has not begun.
            if !short && self.turn_sent == 0 && self.gives_way() {
                self.active.push_front(qpn);
            } else {
                self.active.push_back(qpn);
            }
        }
    }

    /// Moves the QPs that complete on CQs in error to ERR (IBTA vol. 1, 10.2.7.2).
    #[inline]
    pub(crate) fn stop_cut_off(&mut self, now: Time) {
        if !self.hw.cut_off.is_empty() {
            self.stop_all_cut_off(now);
        }
    }

    #[cold]
    fn stop_all_cut_off(&mut self, now: Time) {
        while let Some(who) = self.hw.cut_off.pop() {
            match who {
                CutOff::UsersOf(cq) => {
                    let completes =
                        |core: &QpCore| core.init.send_cq == cq || core.recv_cq == Some(cq);
                    let of = |id: &u32| self.qps.get(*id).is_some_and(|qp| completes(&qp.core));
                    let affected: Vec<u32> = self.qps.ids().filter(of).collect();
                    for id in affected {
                        self.stop(now, id);
                    }
                }
                // Bytes that were written for somebody else than a QP are told under number 0.
                CutOff::Qp(number) => self.stop(now, self.named(number)),
            }
        }
    }

    /// Moves a QP to ERR that cannot complete anything, and tells its owner.
    fn stop(&mut self, now: Time, id: u32) {
        let Some(queue_pair) = self.qps.get_mut(id) else { return };
        // One in RESET completes nothing, and of one in ERR its owner knows.
        if !matches!(queue_pair.core.state, QpState::Reset | QpState::Err) {
            queue_pair.enter_error(&mut self.hw, now);
            self.hw.event(AsyncEvent::QpFatal(Qp(id)));
        }
    }
}
