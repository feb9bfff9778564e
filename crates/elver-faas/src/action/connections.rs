//! Connections to an action: so many at once, of which one that is idle makes room for a new one. Who says nothing shuts nobody
//! out.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use tokio::sync::Notify;
use tokio::time::Instant;

#[derive(Debug)]
struct State {
    /// Since when it has no request; none while it has one.
    idle_since: Cell<Option<Instant>>,
    has_asked: Cell<bool>,
    leave: Notify,
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
    /// idle longest. `None` if all have requests.
    pub(super) fn connected(self: &Rc<Self>) -> Option<Connection> {
        let mut of = self.of.borrow_mut();
        if of.len() >= self.most {
            let idle = of.iter().enumerate().filter_map(|(at, connection)| {
                Some((connection.has_asked.get(), connection.idle_since.get()?, at))
            });
            let (_, _, at) = idle.min()?;
            of.remove(at).leave.notify_one();
        }
        let (idle_since, leave) = (Cell::new(Some(Instant::now())), Notify::new());
        let state = Rc::new(State { idle_since, has_asked: Cell::new(false), leave });
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

    /// Waits until it has to make room.
    pub(super) async fn told_to_leave(&self) {
        self.state.leave.notified().await;
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
    use std::time::Duration;

    use super::*;

    async fn is_to_leave(connection: &Connection) -> bool {
        tokio::time::timeout(Duration::from_secs(1), connection.told_to_leave()).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_idle_makes_room() {
        let connections = Connections::new(3);
        let new = || connections.connected();
        let (asked, busy, silent) = (new().unwrap(), new().unwrap(), new().unwrap());
        asked.at_work(async {}).await;
        let working = busy.at_work(std::future::pending::<()>());
        assert!(tokio::time::timeout(Duration::from_secs(1), working).await.is_err());
        // One that has said nothing goes before one that is idle for longer, and one at work never.
        let second = new().unwrap();
        assert!(is_to_leave(&silent).await && !is_to_leave(&asked).await);
        second.at_work(async {}).await;
        let third = new().unwrap();
        assert!(is_to_leave(&asked).await && !is_to_leave(&second).await);
        for at_work in [&second, &third] {
            let working = at_work.at_work(std::future::pending::<()>());
            assert!(tokio::time::timeout(Duration::from_secs(1), working).await.is_err());
        }
        assert!(new().is_none());
        assert!(!is_to_leave(&busy).await);
        drop((busy, silent, asked, second));
        let gone = connections.all_gone();
        assert!(tokio::time::timeout(Duration::from_secs(1), gone).await.is_err());
        drop(third);
        connections.all_gone().await;
    }
}
