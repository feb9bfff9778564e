//! Connections to an action: so many at once, of which one that is idle makes room for a new one. Who says nothing shuts nobody
//! out. One that makes room still comes to the end of a head that it has begun, and of an answer; there are as many such as others
//! at most, of which one that has no more than a head to come is cut off.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use tokio::sync::Notify;
use tokio::time::Instant;

#[derive(Debug)]
struct State {
    /// Since when it has no request; none while it has one.
    idle_since: Cell<Option<Instant>>,
    has_asked: Cell<bool>,
    /// Its peer has not taken the whole of its answer yet.
    is_writing: Cell<bool>,
    /// Since when it is to make room.
    leaves_since: Cell<Option<Instant>>,
    leave: Notify,
    cut: Notify,
}

impl State {
    fn new() -> Rc<State> {
        Rc::new(State {
            idle_since: Cell::new(Some(Instant::now())),
            has_asked: Cell::default(),
            is_writing: Cell::default(),
            leaves_since: Cell::default(),
            leave: Notify::new(),
            cut: Notify::new(),
        })
    }

    fn is_at_work(&self) -> bool {
        self.idle_since.get().is_none() || self.is_writing.get()
    }
}

/// Those that there are.
#[derive(Debug)]
pub(super) struct Connections {
    most: usize,
    of: RefCell<Vec<Rc<State>>>,
    /// The last one has gone.
    all_gone: Notify,
}

/// One of them, until it is dropped.
#[derive(Debug)]
pub(super) struct Connection {
    state: Rc<State>,
    among: Rc<Connections>,
}

impl Connections {
    pub(super) fn new(most: usize) -> Rc<Connections> {
        Rc::new(Connections { most, of: RefCell::default(), all_gone: Notify::new() })
    }

    /// A new one. Where there are as many as may be, one that has not asked yet is told to leave, or else the one that has been
    /// idle longest, and one that still reads its answer only then. `None` if all have requests, or too many are still to leave.
    pub(super) fn connected(self: &Rc<Self>) -> Option<Connection> {
        let mut of = self.of.borrow_mut();
        let is_leaving = |state: &Rc<State>| state.leaves_since.get().is_some();
        let leaving = of.iter().filter(|state| is_leaving(state)).count();
        if of.len() - leaving >= self.most {
            let idle = of.iter().filter(|state| !is_leaving(state)).filter_map(|state| {
                let order =
                    (state.is_writing.get(), state.has_asked.get(), state.idle_since.get()?);
                Some((order, state))
            });
            let goes = idle.min_by_key(|(order, _)| *order)?.1.clone();
            if leaving >= self.most {
                let may_go =
                    |(_, state): &(usize, &Rc<State>)| is_leaving(state) && !state.is_at_work();
                let longest = of.iter().enumerate().filter(may_go);
                let (at, _) = longest.min_by_key(|(_, state)| state.leaves_since.get())?;
                of.remove(at).cut.notify_one();
            }
            goes.leaves_since.set(Some(Instant::now()));
            goes.leave.notify_one();
        }
        let state = State::new();
        of.push(state.clone());
        Some(Connection { state, among: self.clone() })
    }

    /// Waits until there is none.
    pub(super) async fn all_gone(&self) {
        while !self.of.borrow().is_empty() {
            self.all_gone.notified().await;
        }
    }
}

impl Connection {
    /// Does a request of its.
    pub(super) async fn at_work<T>(&self, work: impl Future<Output = T>) -> T {
        self.state.has_asked.set(true);
        self.state.idle_since.set(None);
        let done = work.await;
        self.state.idle_since.set(Some(Instant::now()));
        done
    }

    /// To be told whether its peer has not taken the whole of its answer yet.
    pub(super) fn is_writing(&self) -> &Cell<bool> {
        &self.state.is_writing
    }

    /// Waits until it has to make room, when it has come to the end of what it is at.
    pub(super) async fn told_to_leave(&self) {
        self.state.leave.notified().await;
    }

    /// Waits until it has to make room at once.
    pub(super) async fn cut(&self) {
        self.state.cut.notified().await;
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut of = self.among.of.borrow_mut();
        of.retain(|state| !Rc::ptr_eq(state, &self.state));
        if of.is_empty() {
            self.among.all_gone.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::time::Duration;

    use super::*;

    async fn comes(event: impl Future<Output = ()>) -> bool {
        tokio::time::timeout(Duration::from_secs(1), event).await.is_ok()
    }

    async fn is_to_leave(connection: &Connection) -> bool {
        comes(connection.told_to_leave()).await
    }

    async fn begin_to_work(connection: &Connection) {
        assert!(!comes(connection.at_work(pending::<()>())).await);
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_idle_makes_room() {
        let connections = Connections::new(4);
        let new = || connections.connected();
        let (asked, busy, silent, reads) =
            (new().unwrap(), new().unwrap(), new().unwrap(), new().unwrap());
        reads.at_work(async { reads.is_writing().set(true) }).await;
        asked.at_work(async {}).await;
        begin_to_work(&busy).await;
        // One that has said nothing goes before one that is idle for longer, then one that has read its answer, and one at work never.
        let second = new().unwrap();
        assert!(is_to_leave(&silent).await && !is_to_leave(&asked).await);
        begin_to_work(&second).await;
        let third = new().unwrap();
        assert!(is_to_leave(&asked).await && !is_to_leave(&reads).await);
        begin_to_work(&third).await;
        let fourth = new().unwrap();
        assert!(is_to_leave(&reads).await && !is_to_leave(&busy).await);
        begin_to_work(&fourth).await;
        assert!(new().is_none());
        drop((busy, silent, asked, reads, second, third));
        assert!(!comes(connections.all_gone()).await);
        drop(fourth);
        connections.all_gone().await;
    }

    /// One that was to leave counted no more, though it had an answer to write.
    #[tokio::test(start_paused = true)]
    async fn those_that_still_leave_have_a_bound() {
        let connections = Connections::new(2);
        let new = || connections.connected();
        let (begun, writes) = (new().unwrap(), new().unwrap());
        writes.at_work(async { writes.is_writing().set(true) }).await;
        begin_to_work(&begun).await;
        let first = new().unwrap();
        assert!(is_to_leave(&writes).await);
        let second = new().unwrap();
        assert!(is_to_leave(&first).await);
        // Of the two that leave one writes.
        let third = new().unwrap();
        assert!(is_to_leave(&second).await && comes(first.cut()).await);
        assert!(!comes(writes.cut()).await);
        // Both are at work.
        begin_to_work(&second).await;
        assert!(new().is_none());
        assert!(!is_to_leave(&third).await);
        writes.is_writing().set(false);
        let fourth = new().unwrap();
        assert!(is_to_leave(&third).await && comes(writes.cut()).await);
        drop((begun, writes, first, second, third, fourth));
        connections.all_gone().await;
    }
}
