//! A node's core, and what was seen of it since it last did anything.

use elver_core::{Core, Holdings};
use elver_sim::SimDevice;
use elver_verbs::Time;

/// The core of a node in virtual time. Whoever runs one names it from here, where it is compiled.
pub type SimCore = Core<SimDevice>;

/// The core of a node, if it is up. Between two calls nothing of it changes, so that it is counted anew only
/// after one.
#[derive(Default)]
pub(crate) struct Engine {
    core: Option<SimCore>,
    /// What it had when it was last counted.
    held: Option<Holdings>,
    /// When it said that something is due, or that nothing is.
    due: Option<Option<Time>>,
}

impl Engine {
    pub(crate) fn start(&mut self, core: SimCore) {
        *self = Engine { core: Some(core), ..Engine::default() };
    }

    pub(crate) fn stop(&mut self) -> Option<SimCore> {
        std::mem::take(self).core
    }

    pub(crate) fn is_up(&self) -> bool {
        self.core.is_some()
    }

    pub(crate) fn core(&self) -> Option<&SimCore> {
        self.core.as_ref()
    }

    /// The core, for what may change something.
    pub(crate) fn call(&mut self) -> Option<&mut SimCore> {
        (self.held, self.due) = (None, None);
        self.core.as_mut()
    }

    /// The core, for a look at its device that changes nothing.
    pub(crate) fn inspect(&mut self) -> Option<&mut SimCore> {
        self.core.as_mut()
    }

    /// What the core has, counted anew; or which of its counts are wrong.
    pub(crate) fn audit(&mut self) -> Option<Result<Holdings, String>> {
        let core = self.core.as_ref()?;
        if self.held.is_none() {
            match core.audit() {
                Ok(held) => self.held = Some(held),
                Err(what) => return Some(Err(what)),
            }
        }
        self.held.map(Ok)
    }

    /// What the core has, if its counts are right.
    pub(crate) fn held(&self) -> Option<Holdings> {
        self.held.or_else(|| self.core.as_ref()?.audit().ok())
    }

    /// When something is due, by the node's own clock.
    pub(crate) fn due(&mut self) -> Option<Time> {
        let core = self.core.as_ref()?;
        *self.due.get_or_insert_with(|| core.poll_timeout())
    }
}
