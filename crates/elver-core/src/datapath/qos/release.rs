//! Lets VQPs go on that have waited for tokens.

use elver_verbs::{Device, Time};

use crate::Core;
use crate::vqp::Wait;

impl<D: Device> Core<D> {
    /// Lets VQPs go on that waited for tokens, in order, until there are none again. Returns
    /// whether one did.
    pub(crate) fn release_held(&mut self, now: Time) -> bool {
        let mut busy = false;
        for _ in 0..self.datapath.qos.held.len() {
            if self.datapath.qos.due > now {
                break;
            }
            let Some(id) = self.datapath.qos.held.pop_front() else {
                bug!("VQPs that waited for tokens are fewer");
                break;
            };
            if let Some(vqp) = self.vqps.get_mut(id)
                && vqp.wait == Wait::Tokens
            {
                vqp.wait = Wait::Nothing;
                self.pump(id, now);
                busy = true;
            }
        }
        busy
    }
}
