//! Who asks for the status, by connecting. All that wait are told the same, and who does not read holds nobody up.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::rc::Rc;
use std::time::Instant;

use super::requests::ASKER_WAIT;

/// Who is there at once; others wait in the socket's queue, until these have been told or have had their time.
const ASKERS_MAX: usize = 256;

/// Those who are asking, or are being told.
#[derive(Default)]
pub(super) struct Askers(Vec<Asker>);

struct Asker {
    stream: UnixStream,
    telling: Option<Telling>,
}

/// What one is told, how much of it he has, and until when he may take it.
struct Telling {
    text: Rc<[u8]>,
    told: usize,
    until: Instant,
}

impl Askers {
    /// Takes in who has come.
    pub(super) fn take_in(&mut self, listener: &UnixListener) -> io::Result<()> {
        while self.has_room() {
            match listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(true)?;
                    self.0.push(Asker { stream, telling: None });
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    pub(super) fn has_room(&self) -> bool {
        self.0.len() < ASKERS_MAX
    }

    /// Whether somebody is to be told something.
    pub(super) fn wait(&self) -> bool {
        self.0.iter().any(|asker| asker.telling.is_none())
    }

    /// Tells all who wait; without a text they are let go.
    pub(super) fn tell(&mut self, text: Option<Vec<u8>>, now: Instant) {
        let Some(text) = text else { return self.0.retain(|asker| asker.telling.is_some()) };
        let text: Rc<[u8]> = text.into();
        for asker in self.0.iter_mut().filter(|asker| asker.telling.is_none()) {
            let until = now + ASKER_WAIT;
            asker.telling = Some(Telling { text: text.clone(), told: 0, until });
        }
    }

    /// Those who have not taken all.
    pub(super) fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let told = self.0.iter().filter(|asker| asker.telling.is_some());
        told.map(|asker| asker.stream.as_fd())
    }

    /// When the next one has had its time.
    pub(super) fn due(&self) -> Option<Instant> {
        self.0.iter().filter_map(|asker| Some(asker.telling.as_ref()?.until)).min()
    }

    /// Writes as much as they take. Who has all, is gone, or has had its time is let go.
    pub(super) fn go_on(&mut self, now: Instant) {
        self.0.retain_mut(|asker| {
            let Some(telling) = &mut asker.telling else { return true };
            telling.write(&asker.stream) && now < telling.until
        });
    }
}

impl Telling {
    /// Whether there is more to be written.
    fn write(&mut self, mut to: &UnixStream) -> bool {
        while self.told < self.text.len() {
            match to.write(&self.text[self.told..]) {
                Ok(0) => return false,
                Ok(count) => self.told += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
        }
        false
    }
}
