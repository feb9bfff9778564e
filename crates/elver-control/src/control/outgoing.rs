//! Messages that wait to be sent.

use alloc::collections::VecDeque;

use super::address::ControlAddr;
use crate::message::{ControlBody, ControlMessage};

/// Most datagrams that wait to be sent; more are lost, which UD may do.
const OUTGOING_MAX: usize = 1_024;

#[derive(Debug, Default)]
pub(super) struct Outgoing {
    waiting: VecDeque<(ControlAddr, ControlMessage)>,
}

impl Outgoing {
    pub(super) fn send(&mut self, to: ControlAddr, id: u64, body: ControlBody) {
        if self.waiting.len() < OUTGOING_MAX {
            let message = ControlMessage { id, body };
            self.waiting.push_back((to, message));
        }
    }

    pub(super) fn next(&mut self) -> Option<(ControlAddr, ControlMessage)> {
        self.waiting.pop_front()
    }
}
