//! How a pair of rings ends where nobody waits for it: each end of a ring says so, and it is looked again and again whether that has
//! arrived.

use crate::receiver::Receiver;
use crate::sender::Sender;
use crate::wire::Wire;

/// Ends both directions, and waits for nothing: [`is_settled`] goes on with it.
pub fn begin_close(sender: &mut Sender<Wire>, receiver: &mut Receiver<Wire>) {
    sender.carrier().hurry();
    // Whoever is gone needs not hear of it.
    let _ = sender.begin_end();
    let _ = receiver.begin_stop();
}

/// Whether all has arrived, as far as it will: dropped before, what has not is lost, and nobody waits for it.
pub fn is_settled(sender: &mut Sender<Wire>, receiver: &mut Receiver<Wire>) -> bool {
    let polled = sender.poll().and_then(|()| receiver.poll());
    let is_posted = !sender.is_held_up() && !receiver.is_held_up();
    sender.carrier().is_settled() && (is_posted || polled.is_err())
}
