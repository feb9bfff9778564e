//! Who sleeps, and is woken by what others take from the node.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};
use std::time::Duration;

use super::World;
use crate::carried::Carried;
use crate::conn::Conn;
use crate::sleeper::Watched;

/// The longest sleeps: of those who have nothing to wait for here, and while ends have not agreed.
const SLEEP_MAX: Duration = Duration::from_secs(3_600);
const UNDECIDED: Duration = Duration::from_millis(100);

/// Something was taken from the node that another thread may sleep for.
static NEWS: AtomicBool = AtomicBool::new(false);

struct News;

impl Wake for News {
    fn wake(self: Arc<News>) {
        NEWS.store(true, Ordering::Relaxed);
    }
}

impl World {
    /// Asks for wakings before a sleep; how long it may be at most, or none if there is something to look at.
    pub(crate) fn arm(&mut self, watched: &[Watched]) -> Option<Duration> {
        self.unarmed = false;
        let mut at_most = SLEEP_MAX;
        for watched in watched {
            at_most = at_most.min(self.conns.get(&watched.id)?.arm(watched)?);
        }
        if self.has_undecided() || !self.closing.is_empty() {
            at_most = at_most.min(UNDECIDED);
        }
        self.leave_dead_node();
        let Some(link) = self.link() else { return Some(at_most.min(self.slice())) };
        let at_most = link.arm_pending(at_most)?;
        link.wake_on_news(&Waker::from(Arc::new(News)));
        if link.arm() {
            return Some(at_most);
        }
        // Of connections that this sleep is not for: it stays there until they are looked at.
        self.conns.values().filter_map(Conn::carried).for_each(Carried::poll);
        self.accept();
        if let Some(link) = &mut self.link {
            link.look_after();
        }
        None
    }

    /// How long to sleep at most beside what a dead node carried.
    fn slice(&self) -> Duration {
        if self.link.is_some() { UNDECIDED } else { SLEEP_MAX }
    }

    /// Who has the lock lets go of it: if it took from the node what others may sleep for, they are woken.
    pub(crate) fn pass_news(&mut self) {
        let news = NEWS.swap(false, Ordering::Relaxed);
        if !self.sleepers.is_empty() && (news || self.unarmed) {
            self.tell_sleepers();
        }
    }

    /// Has those woken who have something, since another took what was to wake them.
    fn tell_sleepers(&mut self) {
        self.unarmed = false;
        let Some(link) = self.link() else { return };
        link.wake_on_news(&Waker::from(Arc::new(News)));
        if self.has_undecided() || !link.arm() {
            return self.wake_all();
        }
        for sleeper in &self.sleepers {
            let has_news = |watched: &Watched| {
                self.conns.get(&watched.id).is_none_or(|conn| conn.arm(watched).is_none())
            };
            if sleeper.watched.iter().any(has_news) {
                sleeper.wake();
            }
        }
    }
}
