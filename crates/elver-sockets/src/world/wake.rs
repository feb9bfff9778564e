//! Who sleeps, and is woken by what others take from the node.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};
use std::time::Duration;

use super::World;
use crate::carried::Carried;
use crate::conn::Conn;
use crate::sleeper::{Ringing, Sleeper, Watched};

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
        let Some(link) = &self.link else { return Some(at_most) };
        let at_most = link.arm_pending(at_most)?;
        link.wake_on_news(&Waker::from(Arc::new(News)));
        if link.arm() {
            return Some(at_most);
        }
        // Of connections that this sleep is not for: it stays there until they are looked at.
        self.conns.values().filter_map(Conn::carried).for_each(Carried::poll);
        self.accept();
        None
    }

    /// Who has the lock lets go of it: if it took from the node what others may sleep for, they are woken.
    pub(crate) fn pass_news(&mut self) {
        let news = NEWS.swap(false, Ordering::Relaxed);
        if !self.sleepers.is_empty() && (news || self.unarmed) {
            self.tell_sleepers();
        }
    }

    /// Whether one of those who sleep is woken by what the node tells. It wakes the others for theirs, so that each
    /// message does not wake all.
    pub(crate) fn is_watch_kept(&self) -> bool {
        self.sleepers.iter().any(|sleeper| sleeper.keeps_watch)
    }

    /// A thread sleeps no more: unless another is woken by what the node tells, it is as if nobody was.
    pub(crate) fn got_up(&mut self, sleeper: &Arc<Sleeper>) {
        self.sleepers.retain(|other| !Arc::ptr_eq(other, sleeper));
        if !self.is_watch_kept()
            && let Some(link) = &self.link
        {
            link.disarm();
            self.unarmed = true;
        }
    }

    /// Has those woken who have something, since another took what was to wake them, and one who keeps watch if nobody does.
    fn tell_sleepers(&mut self) {
        self.unarmed = false;
        let Some(link) = &self.link else { return };
        link.wake_on_news(&Waker::from(Arc::new(News)));
        if self.has_undecided() || !link.arm() {
            return self.wake_all();
        }
        // Whoever was woken looks for itself, and keeps watch when it lies down again.
        for sleeper in self.sleepers.iter().filter(|sleeper| !sleeper.is_rung()) {
            let has_news = |watched: &Watched| {
                self.conns.get(&watched.id).is_none_or(|conn| conn.arm(watched).is_none())
            };
            if sleeper.watched.iter().any(has_news) {
                self.ringing.0.extend(sleeper.wake());
            }
        }
        self.ringing.0.extend(next_watch(&self.sleepers).and_then(Sleeper::wake));
    }

    /// The bells of those who are to be woken.
    pub(crate) fn take_ringing(&mut self) -> Ringing {
        std::mem::take(&mut self.ringing)
    }
}

/// Who is to keep watch, if nobody does, and nobody comes who would.
fn next_watch(sleepers: &[Arc<Sleeper>]) -> Option<&Sleeper> {
    let is_kept = |sleeper: &Arc<Sleeper>| sleeper.keeps_watch || sleeper.is_rung();
    sleepers.first().filter(|_| !sleepers.iter().any(is_kept)).map(|first| &**first)
}

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, eventfd};

    use super::*;
    use crate::own::Own;

    fn sleeper(keeps_watch: bool) -> Arc<Sleeper> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        Arc::new(Sleeper::new(Arc::new(Own::new(bell)), Vec::new(), keeps_watch))
    }

    /// How often a bell was rung since this was asked last.
    fn rings(sleeper: &Sleeper) -> u64 {
        let mut count = [0; 8];
        let read = rustix::io::read(&sleeper.bell, &mut count);
        read.map_or(0, |_| u64::from_ne_bytes(count))
    }

    /// Each release of the lock rang for who was on the way.
    #[test]
    fn who_sleeps_is_rung_for_once_and_when_the_lock_is_free() {
        let (mut world, one) = (World::new(0), sleeper(true));
        world.sleepers.push(one.clone());
        world.wake_all();
        world.wake_all();
        assert_eq!(rings(&one), 0);
        drop(world.take_ringing());
        assert_eq!(rings(&one), 1);
        world.wake_all();
        drop(world.take_ringing());
        assert_eq!(rings(&one), 0);
    }

    #[test]
    fn one_keeps_watch_for_all_and_another_when_he_is_gone() {
        let mut world = World::new(0);
        let [watch, second, third] = [true, false, false].map(sleeper);
        world.sleepers.extend([watch.clone(), second.clone(), third.clone()]);
        assert!(world.is_watch_kept() && next_watch(&world.sleepers).is_none());
        world.got_up(&watch);
        assert!(!world.is_watch_kept());
        assert!(std::ptr::eq(next_watch(&world.sleepers).unwrap(), &*second));
        // Whoever is on the way lies down again as he who does, or has one woken when he leaves.
        let bell = third.wake();
        assert!(bell.is_some() && next_watch(&world.sleepers).is_none());
        world.got_up(&third);
        assert!(std::ptr::eq(next_watch(&world.sleepers).unwrap(), &*second));
        world.got_up(&second);
        assert!(next_watch(&world.sleepers).is_none());
    }
}
