//! What is set up and done, drawn from a seed: the same for both ways.

use elver_verbs::*;

/// Bytes of each of a side's regions.
pub const REGION: u64 = 64 << 10;
/// Bytes of a place of its own for a WR or a receive.
pub const SLOT: u64 = 2_048;
/// At the initiator: places of what is sent, and behind them of what comes back.
pub const PLACES: u64 = 8;
/// At the target: where WRITEs lie that may be cut off before their last packet, for want of a
/// receive. What such a one has written is nobody's business, and nothing else goes there.
pub const CUT_OFF: u64 = 24 << 10;
/// At the target: where receives lie. One that failed may hold a part of its message.
pub const RECEIVES: u64 = 32 << 10;
pub const DC_KEY: u64 = 0x0123_4567_89ab_cdef;
pub const QKEY: u32 = 0x1111;

/// SplitMix64: it must only be the same everywhere.
pub struct Draw(pub u64);

impl Draw {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub fn percent(&mut self, n: u64) -> bool {
        self.below(100) < n
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Transport {
    Rc,
    Uc,
    Ud,
    Dc,
    /// No plan is drawn for it: those for RC serve.
    Xrc,
}

/// Which key a peer names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// Of the target's region, with the plan's rights.
    Good,
    /// Of a region in another PD.
    Foreign,
    /// Its tag is another.
    Forged,
    /// Of no region.
    Nothing,
    /// Of the window.
    Window,
}

/// Which local memory a WR names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Own {
    Good,
    /// The first SGE's lkey is of another PD.
    Foreign,
    /// The first SGE begins before the region.
    Outside,
    /// It is not writable.
    ReadOnly,
    Inline,
}

/// A send WR.
#[derive(Clone, Copy, Debug)]
pub struct Send {
    pub number: u64,
    pub opcode: SendOpcode,
    pub len: u32,
    pub sges: u32,
    pub own: Own,
    pub key: Key,
    pub va: u64,
    pub words: [u64; 2],
    pub flags: SendFlags,
    /// The DC access key or the Q_Key is right.
    pub admitted: bool,
}

/// A receive.
#[derive(Clone, Copy, Debug)]
pub struct Receive {
    pub number: u64,
    pub len: u32,
    pub sges: u32,
    /// Its last SGE's lkey is of another PD.
    pub bad: bool,
}

#[derive(Clone, Debug)]
pub enum Action {
    Post(Vec<Send>),
    Receive(Vec<Receive>),
    /// The target's region is deregistered.
    Deregister,
    /// The memory behind the target's region is gone, with its registration in place.
    Vanish,
    /// The same at the initiator.
    VanishOwn,
    /// The target binds the window, or invalidates it.
    Bind,
    Invalidate,
    /// A state for the target.
    Target(QpState),
    /// The initiator drains, or goes on.
    Initiator(QpState),
    /// An SRQ's limit.
    Limit(u32),
}

#[derive(Clone, Debug)]
pub struct Plan {
    pub transport: Transport,
    pub srq: bool,
    pub rights: AccessFlags,
    pub region_rights: AccessFlags,
    pub window_rights: AccessFlags,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub rnr_retry: u8,
    pub signal_all: bool,
    pub mtu: Mtu,
    /// The target stays in RTR.
    pub silent: bool,
    pub streams: u8,
    /// The target has no fault, and the initiator's memory may go: who is to blame when both are at
    /// fault depends on who is asked first.
    pub good: bool,
    pub actions: Vec<Action>,
}

impl Plan {
    pub fn draw(seed: u64) -> Plan {
        let mut draw = Draw(seed);
        let transport =
            draw.pick(&[Transport::Rc, Transport::Rc, Transport::Dc, Transport::Uc, Transport::Ud]);
        let good = draw.percent(15);
        let rights = |draw: &mut Draw| {
            let mut rights = AccessFlags::LOCAL_WRITE | AccessFlags::MW_BIND;
            let offered =
                [AccessFlags::REMOTE_READ, AccessFlags::REMOTE_WRITE, AccessFlags::REMOTE_ATOMIC];
            for right in offered {
                if good || draw.percent(85) {
                    rights |= right;
                }
            }
            rights
        };
        let (max_rd_atomic, max_dest_rd_atomic) = draw.pick(
            &[(4, 4), (4, 4), (1, 1), (1, 4), (0, 4), (4, 0), (0, 0)][..if good { 5 } else { 7 }],
        );
        let mut plan = Plan {
            transport,
            srq: transport == Transport::Dc || draw.percent(30),
            rights: rights(&mut draw),
            region_rights: rights(&mut draw),
            window_rights: rights(&mut draw)
                .difference(AccessFlags::LOCAL_WRITE | AccessFlags::MW_BIND),
            max_rd_atomic,
            max_dest_rd_atomic,
            rnr_retry: draw.pick(&[0, 1, 7]),
            signal_all: draw.percent(50),
            mtu: draw.pick(&[Mtu::Mtu256, Mtu::Mtu1024, Mtu::Mtu4096]),
            silent: !good && draw.percent(10),
            good,
            streams: draw.pick(&[0, 0, 2]),
            actions: Vec::new(),
        };
        let (mut sends, mut receives) = (0, 0);
        plan.actions.push(plan.receives(&mut draw, &mut receives));
        for _ in 0..draw.below(8) + 1 {
            let action = plan.action(&mut draw, &mut sends, &mut receives);
            plan.actions.push(action);
        }
        plan.invalidate(seed);
        plan
    }

    /// In some plans a window is bound at the end and then invalidated by the peer's SEND, which they draw for
    /// themselves too seldom. Generated apart, so that all else of a seed is what it was.
    fn invalidate(&mut self, seed: u64) {
        let mut draw = Draw(seed ^ 0x696e_7661_6c69_6461);
        if self.transport != Transport::Rc || self.good || !draw.percent(30) {
            return;
        }
        let receive = Receive { number: 900, len: 2_047, sges: 2, bad: false };
        let through = |draw: &mut Draw, number, opcode| Send {
            number,
            opcode,
            len: draw.pick(&[0, 8, 300]),
            sges: 1,
            own: Own::Good,
            key: Key::Window,
            va: draw.below(2_500) * 8,
            words: [0, draw.next()],
            flags: SendFlags::SIGNALED,
            admitted: true,
        };
        let mut added = vec![Action::Receive(vec![receive]), Action::Bind];
        let before = draw.pick(&[SendOpcode::Write, SendOpcode::Read, SendOpcode::SendWithInv]);
        added.push(Action::Post(vec![through(&mut draw, 900, before)]));
        added.push(Action::Post(vec![through(&mut draw, 901, SendOpcode::SendWithInv)]));
        // What is gone is refused, unless it is bound anew.
        if draw.percent(30) {
            added.push(Action::Bind);
        }
        let after = draw.pick(&[SendOpcode::Write, SendOpcode::Read, SendOpcode::FetchAdd]);
        added.push(Action::Post(vec![through(&mut draw, 902, after)]));
        self.actions.extend(added);
    }

    fn receives(&self, draw: &mut Draw, receives: &mut u64) -> Action {
        let count = if self.good { 16 } else { draw.below(5) };
        let posted = (0..count).map(|_| {
            *receives += 1;
            // A message that both is too long and meets a bad SGE fails by what comes first, which
            // packets find sooner.
            let bad = !self.good && draw.percent(8);
            let len =
                if bad || self.good { 2_047 } else { draw.pick(&[0, 8, 40, 300, 600, 2_000]) };
            Receive { number: *receives, len, sges: draw.below(3) as u32 + 1, bad }
        });
        Action::Receive(posted.collect())
    }

    fn action(&self, draw: &mut Draw, sends: &mut u64, receives: &mut u64) -> Action {
        let connected = matches!(self.transport, Transport::Rc | Transport::Uc);
        let any = draw.below(100);
        match any {
            0..20 if self.good => Action::VanishOwn,
            _ if self.good => Action::Post(vec![self.next_send(draw, sends)]),
            0..8 => self.receives(draw, receives),
            8..11 => Action::Deregister,
            11..14 => Action::Vanish,
            16..24 if connected => Action::Bind,
            24..27 if connected => Action::Invalidate,
            27..29 => Action::Target(QpState::Err),
            29..31 => Action::Target(QpState::Reset),
            31..34 if self.transport != Transport::Dc => Action::Initiator(QpState::Sqd),
            34..38 => Action::Initiator(QpState::Rts),
            38..41 if self.srq => Action::Limit(draw.below(4) as u32),
            _ => {
                let mut reads = false;
                let posted = (0..draw.below(4) + 1).map(|_| {
                    let mut send = self.next_send(draw, sends);
                    // What follows a READ may overtake its answer, unless it is fenced (IBTA
                    // vol. 1, 10.8.3.3). So it may be executed, and then flushed because the answer
                    // had no place.
                    if reads {
                        send.flags |= SendFlags::FENCE;
                    }
                    reads |= matches!(
                        send.opcode,
                        SendOpcode::Read | SendOpcode::CompareSwap | SendOpcode::FetchAdd
                    );
                    send
                });
                Action::Post(posted.collect())
            }
        }
    }

    fn next_send(&self, draw: &mut Draw, sends: &mut u64) -> Send {
        *sends += 1;
        let mut send = self.send(draw, *sends);
        if !self.good {
            let gone = |action: &Action| matches!(action, Action::Deregister | Action::Vanish);
            if self.actions.iter().any(gone) {
                // As with a bad SGE: packets find first what a later one would be too long for.
                send.len = send.len.min(self.mtu.bytes());
            }
            return send;
        }
        let inside = if send.va >= 20_000 { CUT_OFF } else { send.va & !7 };
        let opcode = match send.opcode {
            SendOpcode::SendWithInv => SendOpcode::Send,
            opcode => opcode,
        };
        Send { opcode, key: Key::Good, va: inside, admitted: true, ..send }
    }

    fn send(&self, draw: &mut Draw, number: u64) -> Send {
        let qp_type = match self.transport {
            Transport::Rc => QpType::Rc,
            Transport::Uc => QpType::Uc,
            Transport::Ud => QpType::Ud,
            Transport::Dc => QpType::Dci,
            Transport::Xrc => QpType::XrcSend,
        };
        let offered = [
            SendOpcode::Send,
            SendOpcode::SendWithImm,
            SendOpcode::SendWithInv,
            SendOpcode::Write,
            SendOpcode::WriteWithImm,
            SendOpcode::Read,
            SendOpcode::CompareSwap,
            SendOpcode::FetchAdd,
        ];
        let offered: Vec<SendOpcode> =
            offered.into_iter().filter(|opcode| qp_type.supports(*opcode)).collect();
        let opcode = draw.pick(&offered);
        let atomic = matches!(opcode, SendOpcode::CompareSwap | SendOpcode::FetchAdd);
        let fetches = atomic || opcode == SendOpcode::Read;
        let len = if atomic { 8 } else { draw.pick(&[0, 1, 8, 40, 250, 256, 257, 600, 2_000]) };
        let len = if self.transport == Transport::Ud { len.min(self.mtu.bytes()) } else { len };
        let own = match draw.below(100) {
            0..3 if len > 0 => Own::Foreign,
            3..6 if len > 0 => Own::Outside,
            6..9 => Own::ReadOnly,
            9..30 if len <= 256 && !fetches => Own::Inline,
            _ => Own::Good,
        };
        let misaligned = draw.percent(15);
        let va = match draw.below(100) {
            0..4 => REGION - u64::from(len / 2),
            4..6 => u64::MAX - 8,
            _ if opcode == SendOpcode::WriteWithImm && len > self.mtu.bytes() => {
                CUT_OFF + draw.below(700) * 8
            }
            _ => draw.below(2_500) * 8 + if misaligned { 4 } else { 0 },
        };
        let mut flags = SendFlags::empty();
        for (flag, percent) in
            [(SendFlags::SIGNALED, 70), (SendFlags::SOLICITED, 30), (SendFlags::FENCE, 10)]
        {
            if draw.percent(percent) {
                flags |= flag;
            }
        }
        Send {
            number,
            opcode,
            len,
            sges: draw.below(3) as u32 + 1,
            own,
            key: match draw.below(100) {
                0..4 => Key::Foreign,
                4..7 => Key::Forged,
                7..10 => Key::Nothing,
                10..25 => Key::Window,
                _ => Key::Good,
            },
            va,
            words: [draw.below(3), draw.next()],
            flags,
            admitted: draw.percent(95),
        }
    }
}
