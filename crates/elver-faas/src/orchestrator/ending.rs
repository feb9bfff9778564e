//! Ends of containers, also of those that the runtime does not end at once.

use std::rc::Rc;

use tokio::task::spawn_local;

use super::core::Orchestrator;
use super::stuck::Stuck;
use super::tables::{Counted, State};
use crate::containers::{Runtime, RuntimeError};
use crate::schedule::ContainerId;
use crate::state::StateDirectory;

impl Orchestrator {
    /// Ends all containers; none is made from here on.
    pub(super) async fn end(&self) {
        self.is_ending.set(true);
        loop {
            let next = self.state.borrow_mut().homes.pop_first();
            let Some((id, home)) = next else { break };
            home.control.abort();
            let _at_work = home.commands.lock().await;
            if let Err(error) = self.end_by(&self.runtime, id).await {
                eprintln!("{error}");
            }
        }
        // Those that were being ended: who leaves now would kill the runtime half-way.
        while self.deletions.get() > 0 {
            self.deleted.notified().await;
        }
        // One that does not end now is found by the next orchestrator.
        let stuck = std::mem::take(&mut self.state.borrow_mut().stuck);
        for (id, stuck) in stuck {
            if let Err(error) = self.end_by(&stuck.runtime, id).await {
                eprintln!("{error}");
            }
        }
        // A file that is not there is as good.
        let _ = std::fs::remove_file(self.directory.own_front_socket());
        self.directory.clear();
    }

    /// Ends a container and tells the schedule. The requests that it has fail for this reason.
    pub(super) fn delete(self: &Rc<Self>, id: ContainerId, why: &str) {
        let (this, why) = (self.clone(), why.to_string());
        spawn_local(async move {
            let home = this.state.borrow_mut().homes.remove(&id);
            let Some(home) = home else { return };
            home.control.abort();
            let ended = {
                let _counted = Counted::new(&this.deletions, &this.deleted);
                let _at_work = home.commands.lock().await;
                this.end_by(&this.runtime, id).await
            };
            match ended {
                Ok(()) => this.with(|schedule, now| schedule.container_ended(now, id, &why)),
                Err(error) => this.keep(id, this.runtime.clone(), &why, &error),
            }
            this.close_doors();
        });
    }

    /// Has the runtime end a container, of which nothing is left then.
    pub(super) async fn end_by(
        &self,
        runtime: &Runtime,
        id: ContainerId,
    ) -> Result<(), RuntimeError> {
        let _counted = Counted::new(&self.deletions, &self.deleted);
        runtime.delete(&StateDirectory::name(id)).await?;
        self.directory.remove(id);
        Ok(())
    }

    /// Counts a container that was to be ended and is not, and has the runtime end it later. Its directory stays, by which
    /// another orchestrator finds it.
    pub(super) fn keep(
        self: &Rc<Self>,
        id: ContainerId,
        runtime: Runtime,
        why: &str,
        error: &RuntimeError,
    ) {
        eprintln!("{error}; it is tried again, and the container counts until then");
        self.with(|schedule, now| schedule.container_stays(now, id, why));
        let owner = self.state.borrow().schedule.owner_of(id).unwrap_or_default().to_string();
        let stuck = Stuck { owner, runtime, tries: 1, why: error.to_string() };
        self.state.borrow_mut().stuck.insert(id, stuck);
        spawn_local(self.clone().try_again(id));
    }

    async fn try_again(self: Rc<Self>, id: ContainerId) {
        loop {
            // When all of this ends, that asks a last time.
            let Some(pause) = self.state.borrow().stuck.get(&id).map(Stuck::pause) else { return };
            tokio::time::sleep(pause).await;
            let runtime = self.state.borrow().stuck.get(&id).map(|stuck| stuck.runtime.clone());
            let Some(runtime) = runtime else { return };
            let ended = self.end_by(&runtime, id).await;
            let mut state = self.state.borrow_mut();
            match (ended, state.stuck.get_mut(&id)) {
                (Err(error), Some(stuck)) => {
                    stuck.tries = stuck.tries.saturating_add(1);
                    stuck.why = error.to_string();
                }
                _ => break,
            }
        }
        let stuck = self.state.borrow_mut().stuck.remove(&id);
        if let Some(Stuck { tries, .. }) = stuck {
            eprintln!("{} has ended, at try {}", StateDirectory::name(id), u64::from(tries) + 1);
        }
        self.with(|schedule, now| schedule.container_ended(now, id, "it was stuck"));
    }

    /// Closes the doors of processes that are no more.
    fn close_doors(&self) {
        let State { schedule, doors, .. } = &mut *self.state.borrow_mut();
        doors.retain(|process, _| schedule.container_of(*process).is_some());
    }
}
