//! Takes messages as fast as it can.

use std::time::Duration;

use anyhow::{Result, ensure};
use elver::{RecvWr, VqpOptions, WcStatus};

use crate::worker::task::{ALL, Known, OFFERED, Place};
use crate::worker::tell::{end_with_parent, tell};

/// Receives that are posted, and those that are posted again at a time.
const RECEIVES: usize = 1024;
const REPOST: usize = 32;
/// How long it waits at most until it looks again.
const NAP: Duration = Duration::from_millis(100);

/// Runs until the parent has enough.
pub(super) fn run(at: &Place) -> Result<()> {
    let session = at.attach()?;
    // All messages land in the same place: nobody looks at them.
    let room = session.alloc(OFFERED, ALL)?;
    let sges = [room.sge(0, OFFERED as u32)];
    let receives = [RecvWr { wr_id: 0, sges: &sges }; REPOST];
    let vqp =
        session.create_vqp(VqpOptions { max_recv_wr: RECEIVES as u32, ..VqpOptions::default() })?;
    let port = vqp.qbind(0)?;
    let mut owed = RECEIVES;
    let remote = room.remote(0);
    tell(&Known { gid: session.gid().0, port, addr: remote.addr, rkey: remote.rkey })?;
    end_with_parent()?;
    loop {
        while owed >= REPOST {
            vqp.post_recv(&receives)?;
            owed -= REPOST;
        }
        let messages = match vqp.wait_msgs(Some(NAP)) {
            Ok(messages) => messages,
            Err(elver::Error::TimedOut) => continue,
            Err(error) => return Err(error.into()),
        };
        owed += messages.len();
        for message in messages {
            let status = message.wc.status;
            ensure!(status == WcStatus::Success, "a receive failed: {status}");
        }
    }
}
