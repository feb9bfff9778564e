//! The answers of one node to another's question whether it is there.

use elver_core::{Answer, ControlBody, ControlMessage};
use elver_wire::{PacketView, Route};

fn answer_of(bytes: &[u8]) -> Option<ControlMessage> {
    let view = PacketView::parse(bytes).ok()?;
    let Route::Ud(_) = view.headers().route() else { return None };
    let message = ControlMessage::decode(view.payload()).ok()?;
    matches!(message.body, ControlBody::Answer(Answer::Alive { .. })).then_some(message)
}

/// Whether a datagram tells that a node is there.
pub(crate) fn is_answer(bytes: &[u8]) -> bool {
    answer_of(bytes).is_some()
}

/// The same of every second question alone.
pub(crate) fn is_answer_to_every_second(bytes: &[u8]) -> bool {
    answer_of(bytes).is_some_and(|message| message.id & 1 == 0)
}
