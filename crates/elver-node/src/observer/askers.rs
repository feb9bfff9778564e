//! Who asks for the status, by connecting. All that wait are told the same, and who does not read holds nobody up.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::requests::ASKER_WAIT;

/// Who is there at once; others wait in the socket's queue, until these have been told or have had their time.
const ASKERS_MAX: usize = 256;
/// How long one may take for all that he is told, though he takes some of it again and again; while all places are taken,
/// others have his after [`ASKER_WAIT`].
const TELLING_MAX: Duration = ASKER_WAIT.saturating_mul(10);

/// Those who are asking, or are being told.
#[derive(Default)]
pub(super) struct Askers(Vec<Asker>);

struct Asker {
    stream: UnixStream,
    telling: Option<Telling>,
}

/// What one is told, how much of it he has, since when, and until when he may take more.
struct Telling {
    text: Rc<[u8]>,
    told: usize,
    begun: Instant,
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
            let (begun, until) = (now, now + ASKER_WAIT);
            asker.telling = Some(Telling { text: text.clone(), told: 0, begun, until });
        }
    }

    /// Those who have not taken all.
    pub(super) fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let told = self.0.iter().filter(|asker| asker.telling.is_some());
        told.map(|asker| asker.stream.as_fd())
    }

    /// When the next one has had its time.
    pub(super) fn due(&self) -> Option<Instant> {
        let is_full = !self.has_room();
        let due = |telling: &Telling| {
            let gives_way = is_full.then_some(telling.begun + ASKER_WAIT);
            gives_way.map_or(telling.until, |at| at.min(telling.until))
        };
        self.0.iter().filter_map(|asker| asker.telling.as_ref().map(due)).min()
    }

    /// Writes as much as they take. Who has all, is gone, or has had its time is let go.
    pub(super) fn go_on(&mut self, now: Instant) {
        self.0.retain_mut(|asker| {
            let Some(telling) = &mut asker.telling else { return true };
            telling.go_on(&asker.stream, now)
        });
        if !self.has_room() {
            self.make_room(now);
        }
    }

    /// Lets one go for whom others wait: of those who have had their time, who has taken the least.
    fn make_room(&mut self, now: Instant) {
        let told = |asker: &Asker| {
            let telling = asker.telling.as_ref()?;
            (now >= telling.begun + ASKER_WAIT).then_some(telling.told)
        };
        let all = self.0.iter().enumerate();
        let least = all.filter_map(|(at, asker)| Some((told(asker)?, at))).min();
        if let Some((_, at)) = least {
            self.0.swap_remove(at);
        }
    }
}

impl Telling {
    /// Whether there is more to be written, and time for it. Who takes some is given more: this thread may have waited for the
    /// engine meanwhile.
    fn go_on(&mut self, to: &UnixStream, now: Instant) -> bool {
        let told = self.told;
        let is_left = self.write(to);
        if self.told > told {
            self.until = (self.begun + TELLING_MAX).min(now + ASKER_WAIT);
        }
        is_left && now < self.until
    }

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

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    /// More than a socket takes in eleven times, and less than in a hundred.
    const TEXT: usize = 8 << 20;
    /// One who asks, and his end.
    fn asker() -> (Asker, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        rustix::net::sockopt::set_socket_send_buffer_size(&ours, 128 << 10).unwrap();
        (Asker { stream: ours, telling: None }, theirs)
    }

    /// One who is told much, and his end.
    fn told(now: Instant) -> (Askers, UnixStream) {
        let (asker, theirs) = asker();
        let mut askers = Askers(vec![asker]);
        askers.tell(Some(vec![0; TEXT]), now);
        askers.go_on(now);
        (askers, theirs)
    }

    /// Takes all that there is; how much that was.
    fn take(mut from: &UnixStream) -> usize {
        from.set_nonblocking(true).unwrap();
        std::iter::from_fn(|| from.read(&mut [0; 4_096]).ok().filter(|count| *count > 0)).sum()
    }

    /// He was let go after half a second, though he had taken all that there was: the thread had waited for the engine.
    #[test]
    fn who_takes_what_he_is_told_is_told_all_of_it() {
        let begun = Instant::now();
        let (mut askers, theirs) = told(begun);
        let (mut taken, mut now) = (0, begun);
        while !askers.0.is_empty() {
            taken += take(&theirs);
            // As long as the engine is waited for.
            now += ASKER_WAIT / 10;
            assert!(now < begun + TELLING_MAX, "{taken} bytes");
            askers.go_on(now);
        }
        assert_eq!(taken + take(&theirs), TEXT);
    }

    #[test]
    fn who_takes_nothing_or_little_of_it_is_let_go_in_the_end() {
        let begun = Instant::now();
        let (mut askers, _theirs) = told(begun);
        assert_eq!(askers.due(), Some(begun + ASKER_WAIT));
        askers.go_on(begun + ASKER_WAIT - Duration::from_millis(1));
        assert_eq!(askers.0.len(), 1);
        askers.go_on(begun + ASKER_WAIT);
        assert!(askers.0.is_empty());
        let (mut askers, theirs) = told(begun);
        let mut now = begun;
        while now < begun + TELLING_MAX {
            assert_eq!(askers.0.len(), 1);
            assert!(take(&theirs) > 0);
            now += ASKER_WAIT - Duration::from_millis(1);
            askers.go_on(now);
        }
        assert!(askers.0.is_empty());
    }

    /// Each held his place for as long as one waits who asks, so that a few hundred kept everybody from being told anything.
    #[test]
    fn who_takes_little_gives_way_to_those_who_wait() {
        let begun = Instant::now();
        let mut now = begun;
        let (mut askers, mut ends) = (Askers::default(), Vec::new());
        let mut waiting = 2 * ASKERS_MAX;
        loop {
            // They come as the thread turns, without any time passing.
            while askers.has_room() && waiting > 0 {
                let (asker, theirs) = asker();
                askers.0.push(asker);
                ends.push(theirs);
                waiting -= 1;
                askers.go_on(now);
            }
            askers.tell(Some(vec![0; 1 << 20]), now);
            askers.go_on(now);
            if waiting == 0 && askers.has_room() {
                break;
            }
            // Each takes some, and never all.
            ends.retain(|mut theirs| take(theirs) > 0 && theirs.read(&mut [0]).is_err());
            assert_eq!(ends.len(), ASKERS_MAX);
            now += ASKER_WAIT / 2;
            assert!(askers.due() >= Some(now));
            askers.go_on(now);
        }
        assert_eq!(now, begun + 2 * ASKER_WAIT);
        // Nobody waits now, and they may have the rest.
        assert_eq!(askers.0.len(), ASKERS_MAX - 1);
    }
}
