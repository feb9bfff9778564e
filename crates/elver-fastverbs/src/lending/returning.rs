//! What its child left on a queue pair ends before another child gets it.
//!
//! If the child posted no receive, and was told of each of its posts, a WRITE of nothing is sent behind them: when it
//! completes, all before it has, and the connection is as good as before. Else, or if that fails, or the peer allows no
//! WRITE, which would break its end, the queue pair goes to ERR, where what is left is flushed up to a mark, and to RESET: straight there, completions would be lost without a word.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::Ordering::Acquire;
use std::time::{Duration, Instant};

use super::registry;
use super::table::{Slot, State};
use super::verbs::{
    self, Attributes, ERR, Functions, PostRecv, PostSend, Qp, RESET, Receive, STATE, SendWr, Wc,
};
use crate::real;

/// For how long what was sent may take to be acknowledged.
const FENCE_MAX: Duration = Duration::from_millis(500);
/// For how long flushing may take. What a device has not flushed by then, RESET takes away.
const FLUSH_MAX: Duration = Duration::from_secs(1);
/// Completions that are taken at once, and how often in a step.
const BATCH: usize = 16;
const BATCHES: usize = 64;

/// A queue pair whose child has ended.
pub(crate) struct Return {
    qp: *mut Qp,
    /// The marks' number, which no child could know when it posted.
    mark: u64,
    phase: Phase,
    since: Instant,
    /// Whether the marks are posted: to be sent, and to be received.
    posted: [bool; 2],
    /// Whether they have come back.
    back: [bool; 2],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Fence,
    Flush,
}

impl Return {
    /// Begins with a child's end.
    ///
    /// # Safety
    /// It is a queue pair that is lent, of this process's, and stays so until the return has ended.
    pub(crate) unsafe fn begin(qp: *mut Qp, slot: &Slot, is_fenced: bool, now: Instant) -> Return {
        let all_told = slot.begun.load(Acquire) == slot.ended.load(Acquire);
        let is_calm = is_fenced && all_told && slot.receives.load(Acquire) == 0;
        let phase = if is_calm { Phase::Fence } else { Phase::Flush };
        let (posted, back) = ([false; 2], [false; 2]);
        let mark = RandomState::new().build_hasher().finish();
        let mut this = Return { qp, mark, phase, since: now, posted, back };
        if phase == Phase::Flush {
            this.flush(now);
        }
        this
    }

    /// Goes on; how the queue pair is once it has ended.
    pub(crate) fn step(&mut self, now: Instant) -> Option<State> {
        self.mark();
        let is_calm = self.take();
        let waited = now.duration_since(self.since);
        match self.phase {
            Phase::Fence if self.back[0] && is_calm => Some(State::Free),
            Phase::Fence if !is_calm || waited > FENCE_MAX => {
                self.flush(now);
                None
            }
            Phase::Fence => None,
            Phase::Flush if self.back == [true; 2] || waited > FLUSH_MAX => {
                let is_reset = self.go(RESET);
                // What came meanwhile is nobody's.
                self.take();
                Some(if is_reset { State::Reset } else { State::Broken })
            }
            Phase::Flush => None,
        }
    }

    fn flush(&mut self, now: Instant) {
        // Where it fails RESET does so too, which is told.
        self.go(ERR);
        (self.phase, self.since) = (Phase::Flush, now);
        (self.posted, self.back) = ([false; 2], [false; 2]);
    }

    /// Changes the queue pair's state.
    fn go(&self, state: u32) -> bool {
        let mut attributes = Attributes([0; 64]);
        attributes.0[0] = state;
        // SAFETY: by the promise of `begin`; the attributes are longer than libibverbs' own.
        let changed =
            unsafe { real::ibv_modify_qp(self.qp.cast(), (&raw mut attributes).cast(), STATE) };
        changed == Some(0)
    }

    /// Posts the marks that are not posted yet. Where the queue is full they have to wait.
    fn mark(&mut self) {
        // SAFETY: by the promise of `begin`.
        let functions = unsafe { registry::functions((*self.qp).context) };
        let Some(Functions { post_send, post_recv }) = functions else { return };
        let mut bad = std::ptr::null_mut();
        // SAFETY: the provider's functions of these types, for a queue pair of this process's; the WRs last as long as the
        // calls, which copy them.
        unsafe {
            let post_send = std::mem::transmute::<usize, PostSend>(post_send);
            let post_recv = std::mem::transmute::<usize, PostRecv>(post_recv);
            if !self.posted[0] {
                let mut fence = SendWr::fence(self.mark);
                self.posted[0] = post_send(self.qp, (&raw mut fence).cast(), &raw mut bad) == 0;
            }
            if self.phase == Phase::Flush && !self.posted[1] {
                let mut receive = Receive::new(self.mark);
                self.posted[1] = post_recv(self.qp, (&raw mut receive).cast(), &raw mut bad) == 0;
            }
        }
    }

    /// Takes completions; whether all of them were successes of what was sent: a receive's says that there may be more of them,
    /// which the child has not posted.
    fn take(&mut self) -> bool {
        // SAFETY: by the promise of `begin`.
        let (context, queues) = unsafe {
            let qp = &*self.qp;
            (qp.context, [(qp.send_cq, 0), (qp.recv_cq, 1)])
        };
        let mut is_calm = true;
        for (cq, side) in queues {
            // With one queue for both, the mark that was sent is the first that comes.
            let is_one = queues[0].0 == queues[1].0;
            for _ in 0..BATCHES {
                let mut batch = [Wc::default(); BATCH];
                // SAFETY: a queue of that context's.
                let count = unsafe { verbs::poll(context, cq, &mut batch) };
                let taken = batch.iter().take(usize::try_from(count).unwrap_or(0));
                for completion in taken {
                    let is_received = completion.is_receive() || side == 1 && !is_one;
                    is_calm &= completion.status == 0 && !is_received;
                    if completion.wr_id == self.mark {
                        let side = if is_one && self.back[0] { 1 } else { side };
                        self.back[side] = true;
                    }
                }
                if count < BATCH as i32 {
                    break;
                }
            }
        }
        is_calm
    }
}
