//! `qconnect` (Algorithm 1): an RC QP if there is one, else DC with metadata from the DCCache or
//! from a meta server.

pub(crate) mod attach;
mod ended;
mod found;

use core::num::NonZeroU16;

use elver_verbs::{ConnectOptions, Device, Gid, Policy, Time, Via};

use crate::connect::attach::Onto;
use crate::discovery::peer::Peers;
use crate::discovery::peer::Waiter;
use crate::ids::PeerId;
use crate::vqp::phase::Phase;
use crate::{ClientId, ConnectError, Core, CoreError, Event, VqpId};

impl Peers {
    /// Whether it is known where a peer takes control messages, and nothing speaks against it.
    fn may_ask(&self, peer: PeerId) -> bool {
        self.get(peer).is_some_and(|entry| !entry.doubted && entry.control.is_some())
    }
}

impl<D: Device> Core<D> {
    /// Connects a VQP (Algorithm 1, `vqp_connect`). `Ok(Some)` if that was at hand; otherwise
    /// [`Event::Connected`] with the token follows.
    ///
    /// # Errors
    ///
    /// [`CoreError::NoSuchClient`]; [`CoreError::NoSuchVqp`], also if it is another's; [`CoreError::State`] if it is busy;
    /// [`CoreError::Limit`] if no further peer can be remembered. What the connect itself comes to, the event says.
    #[allow(clippy::too_many_arguments)] // The verbs' own call has them, and no group of them recurs.
    #[inline(never)]
    pub fn qconnect(
        &mut self,
        client: ClientId,
        vqp: VqpId,
        gid: Gid,
        port: u16,
        options: ConnectOptions,
        token: u64,
        now: Time,
    ) -> Result<Option<Via>, CoreError> {
        self.begin_connect(client, vqp, now)?;
        let limit = u64::from(self.config.max_peers);
        let all_used = CoreError::Limit { what: "peers in use", limit, setting: "max_peers" };
        let peer = self.peer_of(gid).ok_or(all_used)?;
        let policy = match options.policy {
            // As if there was no RC QP yet: one is made, and is not left behind.
            Policy::Lite if options.uncached => Policy::Leased,
            policy => policy,
        };
        let entry = self.own_vqp(client, vqp)?;
        (entry.token, entry.peer_port, entry.policy) = (token, NonZeroU16::new(port), policy);
        let class = entry.class;
        if !options.uncached
            && let Some(via) = self.at_hand(peer, class, policy)
        {
            self.attach(vqp, peer, via, Onto::Shared)?;
            self.count_connect(via);
            return Ok(Some(via));
        }
        if self.discovery.lookups.waiting >= self.config.storm.connects_waiting_max {
            self.stats.connects_busy += 1;
            let limit = self.config.storm.connects_waiting_max;
            let result = Err(ConnectError::Busy { waiting: self.discovery.lookups.waiting, limit });
            self.events.push_back(Event::Connected { client, token, vqp, result });
            return Ok(None);
        }
        let attempt = self.discovery.lookups.attempt_begins();
        let entry = self.own_vqp(client, vqp)?;
        (entry.phase, entry.attempt) = (Phase::Connecting, attempt);
        let waiter = Waiter::Vqp { vqp, attempt };
        match policy {
            Policy::Lite | Policy::Leased if self.peers.may_ask(peer) => {
                self.connect_by_link(vqp, attempt, peer, now);
            }
            _ if !options.uncached && self.lacks_dc(peer) && self.peers.may_ask(peer) => {
                self.connect_by_link(vqp, attempt, peer, now);
            }
            Policy::RpcMeta if self.peers.may_ask(peer) => self.ask_meta(peer, waiter, now),
            _ => self.want_node(peer, waiter, now),
        }
        self.apply(now);
        Ok(None)
    }

    /// Gets the metadata of many peers at once, ahead of connecting. [`Event::Warmed`] follows.
    ///
    /// # Errors
    ///
    /// [`CoreError::NoSuchClient`]; [`CoreError::OutOfRange`] for more GIDs than peers are remembered;
    /// [`CoreError::Limit`] if too many such calls are under way.
    #[inline(never)]
    pub fn warm(
        &mut self,
        client: ClientId,
        gids: &[Gid],
        token: u64,
        now: Time,
    ) -> Result<(), CoreError> {
        self.clients.open_client(client)?;
        let max = u64::from(self.config.max_peers);
        let value = gids.len() as u64;
        if value > max {
            return Err(CoreError::OutOfRange { name: "GIDs of a warm call", value, min: 0, max });
        }
        if gids.is_empty() {
            self.events.push_back(Event::Warmed { client, token, ready: 0, failed: 0 });
            return Ok(());
        }
        let warm = self.begin_warm(client, token, gids.len() as u32)?;
        for gid in gids {
            match self.peer_of(*gid) {
                None => self.warmed(warm, false),
                Some(peer)
                    if self.peers.get(peer).is_some_and(|entry| entry.sure_record().is_some()) =>
                {
                    self.peers.rest(peer);
                    self.warmed(warm, true);
                }
                Some(peer) => self.want_node(peer, Waiter::Warm(warm), now),
            }
        }
        self.apply(now);
        Ok(())
    }

    /// Checks that a VQP may be connected now, and takes it off what it was connected to, which is told.
    fn begin_connect(&mut self, client: ClientId, vqp: VqpId, now: Time) -> Result<(), CoreError> {
        self.clients.open_client(client)?;
        let entry = self.own_vqp(client, vqp)?;
        // Who connects anew while it connects may have posted WRs meanwhile: they wait for where that leads.
        let busy = entry.inflight > 0
            || entry.reads > 0
            || (!matches!(entry.phase, Phase::Idle | Phase::Connecting) && entry.sq.len() > 0);
        if busy {
            let state = "busy: WRs are outstanding";
            return Err(CoreError::State { state, call: "qconnect" });
        }
        // A new one has nothing to forget, and is not touched where it is not needed.
        if entry.is_fresh() && entry.phase == Phase::Idle {
            return Ok(());
        }
        let used = entry.via.is_some();
        let known = used && (entry.sq.has_sent_messages() || entry.accepted.is_some());
        self.cancel_connect(vqp);
        if known {
            self.part(vqp);
        }
        self.detach(vqp);
        // Not when it is connected: nothing should stand between an answer and that.
        let nonce = used.then(|| self.rng.next_u32());
        let entry = self.own_vqp(client, vqp)?;
        entry.credit.reset();
        if entry.sq.len() == 0 {
            // Else they are of WRs that were posted while it connected, and wait.
            entry.sq.forget_messages();
            entry.fault = None;
        }
        (entry.phase, entry.read_until) = (Phase::Idle, None);
        entry.nonce = nonce.unwrap_or(entry.nonce);
        if known {
            self.apply(now);
        }
        Ok(())
    }
}
