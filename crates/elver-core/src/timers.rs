//! What a core does by the clock: one table says when, and what then.

use elver_verbs::{Device, Time};

use crate::Core;

/// One line for each part that waits for a time: when something of its is due next, and what does it, which
/// tells whether there was something. What is due at once is done in this order.
macro_rules! timers {
    ($core:ident: $($due:expr => $attend:ident,)*) => {
        impl<D: Device> Core<D> {
            /// When [`Core::poll`] must be called next, if nothing comes from the device before.
            pub fn poll_timeout(&self) -> Option<Time> {
                let $core = self;
                [$($due),*].into_iter().flatten().min()
            }

            /// Does what is due.
            pub(crate) fn attend(&mut self, now: Time) -> bool {
                let mut busy = false;
                $(busy |= self.$attend(now);)*
                busy
            }
        }
    };
}

timers! {
    core:
    // Look-ups that take too long are given up.
    core.discovery.lookups.next_deadline() => expire_lookups,
    core.discovery.lookups.next_mr_deadline() => expire_mr_lookups,
    // Long messages that their receivers have not read are asked after.
    core.messaging.unread.next_due() => attend_unread,
    // Messages that wait for receives are looked at again.
    core.messaging.held.next_due() => attend_held,
    // What peers were to be told is told when there may be somebody who knows them.
    core.messaging.notes.next_due() => attend_notes,
    // Senders that did not hear of refusals are told again.
    core.messaging.refusals.next_due() => attend_refusals,
    // What somebody copied when its message ended is closed.
    core.regions.local.openings.next_due() => attend_openings,
    // Peers that VQPs only wait for are asked whether they are there.
    core.keep_alive.poll_timeout() => attend_keep_alive,
    core.links.poll_timeout() => attend_links,
    // The low class has tokens again.
    core.datapath.qos.poll_timeout() => release_held,
    // DCIs that are down are tried again.
    core.datapath.next_restart() => retry_dcis,
    // What peers are never ready for ends.
    core.datapath.stalls.next_due().filter(|_| core.datapath.ops.len() > 0) => attend_stalls,
    // Senders ask again for credit.
    core.messaging.credit_probes.next_due() => probe_credit_again,
    // Leases of regions that are deregistered have run out.
    core.regions.local.next_closing() => attend_mrs,
    // What all these have left to be done.
    core.has_effects().then_some(Time::ZERO) => apply,
}
