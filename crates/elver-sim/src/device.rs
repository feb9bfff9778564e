use std::cell::RefCell;
use std::rc::Rc;

use elver_rnic::{Config, Counters, DropReason, MAX_PACKET, Rnic};
use elver_verbs::{
    AccessFlags, Cq, Device, Intake, Mr, MrInfo, Pd, PostError, Qp, QpAttr, QpMade, QpState,
    QpType, SendWr, Time, VerbsError, Wc,
};

use crate::errands::Errands;
use crate::memory::SimMemory;
use crate::network::{ENGINE_PACKET_NS, peek};
use crate::seats::{NetState, Which};
use crate::trace::Event;

/// PSNs have 24 bits.
const PSN_MASK: u32 = (1 << 24) - 1;
/// Looks in which a device that counts sleep has been idle for as long as it remembers an initiator, and at most
/// for one sleep.
const SILENCE_STEPS: u64 = 16;
const SILENCE_LOOKS: u64 = 64;
/// Largest memory that a device gives out.
const MEMORY_MAX: u64 = 1 << 30;

/// The software RNIC in virtual time, on a [`crate::SimNet`].
///
/// [`Device::progress`], and [`Device::poll_cq`] when it finds nothing, take what arrived, do what
/// is due and send; posts send at once. Nothing of this happens while its engine stands still.
/// Dropping it is a crash of its host.
#[derive(Debug)]
pub struct SimDevice {
    net: Rc<RefCell<NetState>>,
    host: usize,
    /// Which of its host's devices it is.
    serial: u64,
    rnic: Rnic<SimMemory>,
    buffer: Vec<u8>,
    forgetful: bool,
    overlooks: Option<Which>,
    /// Until when the device was told that its driver looked, where it counts sleep, in steps of so many
    /// nanoseconds.
    sleeps: Option<Time>,
    /// When its driver looked for packets last, by the network's clock.
    looked_at: Time,
    /// What was taken of what has arrived since that was asked last, and how many packets a look takes.
    intake: Intake,
    at_once: u64,
    /// Packets that had arrived when it was last past what had, or at the end of it, and wait still.
    waiting: usize,
    step: u64,
    errands: Errands,
}

impl SimDevice {
    pub(crate) fn new(
        net: Rc<RefCell<NetState>>,
        host: usize,
        serial: u64,
        config: Config,
        seed: u64,
    ) -> Result<SimDevice, VerbsError> {
        let step = (config.dc_context_idle_ns / SILENCE_STEPS).max(1);
        let rnic = Rnic::new(config, seed)?;
        let errands = Errands::default();
        let buffer = vec![0; MAX_PACKET];
        let (forgetful, overlooks, sleeps) = (false, None, None);
        Ok(SimDevice {
            net,
            host,
            serial,
            rnic,
            buffer,
            forgetful,
            overlooks,
            step,
            sleeps,
            looked_at: Time::ZERO,
            intake: Intake::Behind,
            at_once: u64::MAX,
            waiting: 0,
            errands,
        })
    }

    /// Its host.
    pub fn host(&self) -> usize {
        self.host
    }

    /// Plants a bug: from now on it tells of an RC QP in its error state that this got one packet less
    /// far than it did.
    pub fn forget_packets(&mut self) {
        self.forgetful = true;
    }

    /// As many initiators come to its DC targets as these have to forget others for: all that were silent for as
    /// long as they are remembered at least. Its driver has looked for packets meanwhile, unless it stood still.
    /// How many were forgotten.
    pub fn make_room(&mut self) -> u32 {
        let here = self.now().0;
        count_slept(&mut self.rnic, &mut self.sleeps, Time(here), self.step);
        let since = self.looked_at.0.max(self.net.borrow().seats[self.host].stalled_until);
        let looked = self.net.borrow().now.0.saturating_sub(since) / self.step;
        for left in (0..looked.min(SILENCE_LOOKS)).rev() {
            self.rnic.caught_up(Time(here - left * self.step));
        }
        self.rnic.make_room()
    }

    /// From now on it takes so many packets at most each time that it is driven, as a driver does.
    pub fn take_at_once(&mut self, packets: u64) {
        self.at_once = packets;
    }

    /// Plants a bug: from now on it counts time that it slept through, or that its clock jumped over, as silence
    /// of whoever it heard of before.
    pub fn count_sleep(&mut self) {
        self.sleeps = Some(self.now());
    }

    /// Plants a bug: from now on it does not take datagrams of a kind.
    pub fn overlook(&mut self, which: Which) {
        self.overlooks = Some(which);
    }

    /// What it has done and seen.
    pub fn counters(&self) -> &Counters {
        self.rnic.counters()
    }

    /// All its queue pairs.
    pub fn qps(&self) -> impl Iterator<Item = Qp> + '_ {
        self.rnic.qps()
    }

    /// How many regions it has.
    pub fn mr_count(&self) -> u32 {
        self.rnic.mr_count()
    }

    /// How many address handles it has.
    pub fn ah_count(&self) -> u32 {
        self.rnic.ah_count()
    }

    /// Receives that its SRQs hold.
    pub fn shared_receives(&self) -> u32 {
        self.rnic.shared_receives()
    }

    /// Streams of a DCI that failed and were not set going again.
    ///
    /// # Errors
    /// If there is no such QP.
    pub fn errored_streams(&self, qp: Qp) -> Result<u32, VerbsError> {
        self.rnic.errored_streams(qp)
    }

    /// When [`Device::progress`] must be called next, if no packet arrives before.
    pub fn wake_at(&self) -> Option<Time> {
        let net = self.net.borrow();
        let seat = &net.seats[self.host];
        if seat.device != self.serial {
            return None;
        }
        let waits =
            !seat.inbox.is_empty() || self.rnic.wants_to_transmit() || self.rnic.has_errands();
        let ended = self.errands.due();
        let due = match waits {
            true => Some(net.now),
            false => {
                let due = self.rnic.poll_timeout().into_iter().chain(ended).min();
                due.map(|due| Time(due.0.saturating_sub(seat.ahead)))
            }
        };
        due.map(|due| due.max(Time(seat.busy_until)))
    }

    fn now(&self) -> Time {
        self.net.borrow().time_at(self.host)
    }

    fn drive(&mut self) -> bool {
        let SimDevice {
            net,
            host,
            serial,
            rnic,
            buffer,
            errands,
            overlooks,
            sleeps,
            step,
            looked_at,
            intake,
            at_once,
            waiting,
            ..
        } = self;
        let net = &mut *net.borrow_mut();
        let (now, number) = (net.time_at(*host), *host);
        let seat = &mut net.seats[number];
        // One that takes few packets at a look may look again at the same moment.
        let until = if *at_once < u64::MAX { seat.stalled_until } else { seat.busy_until };
        if seat.device != *serial || until > net.now.0 {
            return false;
        }
        for _ in 0..std::mem::take(&mut seat.dropped) {
            rnic.count_drop(DropReason::Driver);
        }
        count_slept(rnic, sleeps, now, *step);
        let mut packets = 0;
        while packets < *at_once
            && let Some(packet) = seat.inbox.pop_front()
        {
            let (opcode, qpn, psn) = peek(&packet.bytes);
            let len = packet.bytes.len();
            net.trace.add(net.now.0, Event::Delivered { to: number, len, opcode, qpn, psn });
            if !overlooks.is_some_and(|which| which(&packet.bytes)) {
                rnic.handle_datagram(now, &packet.meta, &packet.bytes);
            }
            *waiting = waiting.saturating_sub(1);
            packets += 1;
        }
        if seat.inbox.is_empty() {
            rnic.caught_up(now);
            (*intake, *waiting) = (Intake::Empty, 0);
            *looked_at = net.now;
        } else if *waiting == 0 {
            (*intake, *waiting) = (Intake::Past, seat.inbox.len());
        }
        let due = rnic.poll_timeout().is_some_and(|due| due <= now);
        if due {
            rnic.handle_timeout(now);
        }
        packets += transmit(net, number, rnic, buffer);
        let acted = errands.run(now, rnic, &mut || false);
        if acted {
            packets += transmit(net, number, rnic, buffer);
        }
        due || acted || packets > 0
    }

    /// Sends what was just posted, unless the engine stands still.
    fn flush(&mut self) {
        let SimDevice { net, host, serial, rnic, buffer, .. } = self;
        let net = &mut *net.borrow_mut();
        let seat = &net.seats[*host];
        if seat.device == *serial && seat.stalled_until <= net.now.0 {
            transmit(net, *host, rnic, buffer);
        }
    }
}

/// Counts all time since a device was last driven as time in which its driver looked for packets, if that is planted.
fn count_slept(rnic: &mut Rnic<SimMemory>, since: &mut Option<Time>, now: Time, step: u64) {
    let Some(looked) = since else { return };
    let steps = now.ns_since(*looked) / step;
    for _ in 0..steps.min(SILENCE_LOOKS) {
        *looked = looked.saturating_add_ns(step);
        rnic.caught_up(*looked);
    }
    *looked = now;
}

/// Sends what a device has to send; returns how many packets.
fn transmit(net: &mut NetState, host: usize, rnic: &mut Rnic<SimMemory>, buffer: &mut [u8]) -> u64 {
    let (now, here) = (net.now, net.time_at(host));
    let mut packets = 0;
    while let Some(transmit) = rnic.poll_transmit(here, buffer) {
        let bytes = buffer[..transmit.len].to_vec();
        net.network.send(now.0, host, &transmit, bytes, &mut net.trace);
        packets += 1;
    }
    let seat = &mut net.seats[host];
    seat.busy_until = seat.busy_until.max(now.0 + packets * ENGINE_PACKET_NS);
    packets
}

impl Drop for SimDevice {
    fn drop(&mut self) {
        let mut net = self.net.borrow_mut();
        if net.seats[self.host].device == self.serial {
            net.clear(self.host);
        }
    }
}

impl Device for SimDevice {
    type Memory = SimMemory;

    elver_rnic::calls_of_rnic!(rnic, now);

    fn query_qp(&self, qp: Qp) -> Result<(QpAttr, QpMade), VerbsError> {
        let (mut attr, init) = self.rnic.query_qp(qp)?;
        if self.forgetful && init.qp_type == QpType::Rc && attr.qp_state == QpState::Err {
            attr.rq_psn = attr.rq_psn.wrapping_sub(1) & PSN_MASK;
        }
        Ok((attr, init))
    }

    fn alloc_memory(&mut self, len: u64) -> Result<SimMemory, VerbsError> {
        if len == 0 || len > MEMORY_MAX {
            let name = "memory of a simulated host, in bytes";
            return Err(VerbsError::OutOfRange { name, value: len, min: 1, max: MEMORY_MAX });
        }
        let base = self.net.borrow_mut().allocate(self.host, len);
        Ok(SimMemory::new(vec![0; len as usize], base))
    }

    fn reg_mr(
        &mut self,
        pd: Pd,
        memory: SimMemory,
        iova: Option<u64>,
        access: AccessFlags,
    ) -> Result<MrInfo, VerbsError> {
        self.rnic.reg_mr(pd, memory, iova, access)
    }

    fn reg_mr_part(
        &mut self,
        pd: Pd,
        memory: SimMemory,
        part: (u64, u64),
        iova: Option<u64>,
        access: AccessFlags,
    ) -> Result<MrInfo, VerbsError> {
        self.rnic.reg_mr_part(pd, memory, part, iova, access)
    }

    fn write_region(
        &mut self,
        mr: Mr,
        offset: u64,
        bytes: &[u8],
        cq: Cq,
        wr_id: u64,
    ) -> Result<bool, VerbsError> {
        self.rnic.write_region(mr, offset, bytes, cq, wr_id)
    }

    fn poll_cq(&mut self, cq: Cq, wcs: &mut [Wc]) -> Result<usize, VerbsError> {
        let count = self.rnic.poll_cq(cq, wcs)?;
        if count > 0 || !self.drive() {
            return Ok(count);
        }
        self.rnic.poll_cq(cq, wcs)
    }

    fn post_send(&mut self, qp: Qp, wrs: &[SendWr<'_>]) -> Result<(), (usize, PostError)> {
        let result = self.rnic.post_send(self.now(), qp, wrs);
        self.flush();
        result
    }

    fn post_sends<'a>(
        &mut self,
        qp: Qp,
        wrs: impl Iterator<Item = SendWr<'a>>,
    ) -> Result<(), (usize, PostError)> {
        let result = self.rnic.post_sends(self.now(), qp, wrs);
        self.flush();
        result
    }

    fn progress(&mut self) -> bool {
        self.drive()
    }

    fn intake(&mut self) -> Intake {
        std::mem::take(&mut self.intake)
    }
}
