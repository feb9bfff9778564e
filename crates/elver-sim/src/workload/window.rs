//! Memory windows: bound and invalidated by their owner, used and invalidated by its peer.

use elver_verbs::{AccessFlags, BindMw, RemoteAddr, SendFlags, SendOp};

use super::{Aim, KEY_FLIP, Prepared};
use crate::model::{
    Effect, EndpointId, LaneId, Op, Owner, Planted, Range, Room, State, Violation, Window,
    WindowId, WindowState, message_id, send_wr_id,
};
use crate::pattern::Stream;
use crate::world::{World, refused};

/// Bytes of a memory window.
const WINDOW_BYTES: u32 = 4_096;

impl World {
    /// Aims at a part of an open window of `dest` that nothing used yet.
    pub(super) fn aim_through_window(
        &mut self,
        dest: EndpointId,
        len: u32,
        effect: impl FnOnce(Range) -> Effect,
    ) -> Option<Aim> {
        let fits = |window: &Window| {
            window.owner == dest
                && window.state == WindowState::Open
                && window.used + len <= window.range.len
        };
        let id = self.model.windows.iter().position(fits)?;
        let window = &mut self.model.windows[id];
        let range = window.range.part(window.used, len);
        window.used += len;
        let rkey = window.rkey;
        let effect = match effect(range) {
            Effect::Write(range) => {
                let op = self.model.ops.len();
                self.model.arenas[range.arena].claim(range, Owner::Written(op));
                Effect::Write(range)
            }
            _ => self.reads(range),
        };
        let remote = RemoteAddr { rkey, ..self.remote(range) };
        Some(Aim { effect, remote, window: Some(id), mortal: None })
    }

    /// An open window of `dest` that may be closed: by its peer at any time, by its owner when
    /// nothing uses it.
    pub(super) fn window_to_close(
        &mut self,
        user: EndpointId,
        owner: EndpointId,
        by_peer: bool,
    ) -> Option<WindowId> {
        let peers = self.model.endpoints[owner].peer == Some(user) || !by_peer;
        let fits = |window: &Window| {
            window.owner == owner
                && window.state == WindowState::Open
                && (by_peer || window.uses == 0)
        };
        self.model.windows.iter().position(fits).filter(|_| peers)
    }

    /// An rkey that a SEND to `dest` must not be able to invalidate: of a window that is open on
    /// another QP of that host, of a region, or of nothing. A DCT, which cannot bind, has no other.
    pub(super) fn key_not_to_invalidate(&mut self, dest: EndpointId) -> u32 {
        let arena = self.model.endpoints[dest].arena;
        let foreign = |window: &&Window| {
            window.owner != dest
                && window.state == WindowState::Open
                && self.model.endpoints[window.owner].arena == arena
        };
        let window = self.model.windows.iter().find(foreign).map(|window| window.rkey);
        let region = self.model.arenas[arena].chunks.first().map(|chunk| chunk.info.rkey);
        let nothing = self.posting.next_u64() as u32 | KEY_FLIP;
        match self.posting.below(3) {
            0 => window.unwrap_or(nothing),
            1 => region.unwrap_or(nothing),
            _ => nothing,
        }
    }

    /// Binds a window on an RC or UC QP for its peer, or invalidates one; both also badly.
    pub(crate) fn post_window(&mut self, lane: LaneId) -> Result<(), Violation> {
        if !self.has_room(lane) {
            return Ok(());
        }
        let id = self.model.lanes[lane].endpoint;
        let bad = self.posting.percent(self.plan.bad_percent);
        let closes = self.window_to_close(id, id, false).filter(|_| self.posting.percent(50));
        let (window, op, planted) = match closes {
            Some(window) => {
                self.model.windows[window].state = WindowState::Closing;
                self.model.forsake(window);
                (Some(window), SendOp::LocalInv(self.model.windows[window].rkey), None)
            }
            None if bad && self.posting.percent(50) => {
                let rkey = self.posting.next_u64() as u32 | KEY_FLIP;
                (None, SendOp::LocalInv(rkey), Some(Planted::InvalidateLocally))
            }
            None => {
                let (window, bind) = self.make_window(id, bad)?;
                (Some(window), SendOp::BindMw(bind), bad.then_some(Planted::BindRange))
            }
        };
        let op_id = self.model.ops.len();
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, self.posting.percent(70));
        self.note(Op {
            opcode: op.opcode(),
            lane,
            epoch: self.model.lanes[lane].epoch,
            dest: id,
            len: 0,
            mtu: self.model.endpoints[id].mtu,
            content: (Stream::Payload(u64::from(message_id(op_id))), 0),
            signaled: flags.contains(SendFlags::SIGNALED),
            solicited: false,
            effect: Effect::None,
            local: Vec::new(),
            planted,
            window,
            mortal: None,
            invalidates: None,
            state: State::Outstanding,
            delivered: 0,
        });
        let (sges, inline, dest) = (Vec::new(), None, None);
        self.submit(id, &[Prepared { id: send_wr_id(op_id), op, flags, sges, inline, dest }])
    }

    fn make_window(
        &mut self,
        owner: EndpointId,
        bad: bool,
    ) -> Result<(WindowId, BindMw), Violation> {
        let number = self.model.endpoints[owner].host;
        let host = &mut self.hosts[number];
        let info = host.rnic.alloc_mw(host.pd).map_err(refused("alloc_mw"))?;
        let range = self.take(number, Room::Open, WINDOW_BYTES, true)?;
        let region = self.model.arenas[range.arena].info(range);
        let rkey = info.rkey & !0xff | self.posting.next_u64() as u32 & 0xff;
        let beyond = if bad { region.length } else { 0 };
        let bind = BindMw {
            mw: info.mw,
            rkey,
            mr: region.mr,
            addr: self.remote(range).addr + beyond,
            length: u64::from(range.len),
            access: AccessFlags::REMOTE_CHANGES | AccessFlags::REMOTE_READ,
        };
        self.model.windows.push(Window {
            owner,
            mw: Some(info.mw),
            rkey,
            range,
            used: 0,
            uses: 0,
            state: WindowState::Binding,
        });
        Ok((self.model.windows.len() - 1, bind))
    }
}
