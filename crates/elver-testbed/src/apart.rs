//! Two ends in two processes, each on a core, and what they tell each other beside what is measured.
//!
//! The server's process is a fork of this one: it has what was made before, and nothing that is made later. Where several
//! threads do so, they fork together ([`Pair::forks`]): what one of them was just making would never be made in a child of another.

use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::mpsc::sync_channel;
use std::thread;

use anyhow::{Context, Result, anyhow, ensure};
use elver_console::Failure;
use elver_portal::memfd::{self, Pages};
use elver_soft::SoftMemory;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::meet::Meet;
use crate::pair::{Client, Ends, READY_WAIT};
use crate::seat::{cores, pin};
use crate::signals;

/// What the server's process says when the client may begin. Whatever else it says is why it failed.
const BEGIN: u8 = 1;

/// Which pair it is, of those that run at the same time.
#[derive(Clone, Copy, Default)]
pub struct Pair<'a> {
    /// Counted from 0: it has two cores of its own, if there are as many.
    pub number: usize,
    /// Where all of them meet before they fork, and once they have.
    pub forks: Option<[&'a Meet; 2]>,
}

/// Runs `server`, which lets the client begin, in a process of its own, and `client` in this one.
///
/// # Errors
///
/// What failed at either end, and what the system says.
pub fn run<T: Send>(
    pair: Pair<'_>,
    server: impl FnOnce(&Client) -> Result<()>,
    client: impl FnOnce() -> Result<T> + Send,
) -> Result<T, Failure> {
    // A signal leaves no directory with a node's socket behind.
    signals::watch()?;
    let [client_core, server_core] = [0, 1].map(|end| (2 * pair.number + end) % cores());
    let (link, theirs) = UnixStream::pair().context("cannot make a socket pair")?;
    if let Some([before, _]) = pair.forks {
        before.wait()?;
    }
    let parent = rustix::process::getpid();
    // SAFETY: the child runs `serve` alone and ends by `_exit`. It takes no lock of this process that another of its
    // threads may hold at the fork but the allocator's, which the C library has free there.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        drop(link);
        serve(server, server_core, &theirs, parent);
    }
    drop(theirs);
    let process = Pid::from_raw(pid).filter(|_| pid > 0);
    let process = process.ok_or_else(std::io::Error::last_os_error).context("cannot fork")?;
    let together = pair.forks.map_or(Ok(()), |[_, behind]| behind.wait());
    let (asked, said) = ask(together, client, client_core, &link);
    let served = end_of(process, said);
    match (served, asked) {
        (Ok(()), Ok(asked)) => Ok(asked),
        (Ok(()), Err(error)) => Err(error.context("client").into()),
        (Err(error), Ok(_)) => Err(error.context("server").into()),
        (Err(server), Err(client)) => {
            Err(server.context(format!("client: {client:#}; server")).into())
        }
    }
}

/// The server's process, to its end.
fn serve(
    server: impl FnOnce(&Client) -> Result<()>,
    core: usize,
    link: &UnixStream,
    parent: Pid,
) -> ! {
    // Nothing is left behind, however its parent ends, or has ended.
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    if rustix::process::getppid() != Some(parent) {
        // SAFETY: it ends this process, which has nothing that others wait for.
        unsafe { libc::_exit(1) };
    }
    // A panic is told as any failure is, and not where another thread may have been writing at the fork.
    std::panic::set_hook(Box::new(|_| {}));
    let ended = catch_unwind(AssertUnwindSafe(|| {
        let client = beside(link)?;
        pin(core);
        server(&client)
    }));
    let ended = ended.unwrap_or_else(|panic| {
        let what = panic.downcast_ref::<String>().map(String::as_str);
        let what = what.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(anyhow!("it panicked: {}", what.unwrap_or("nothing is known of why")))
    });
    let code = match ended {
        Ok(()) => 0,
        Err(error) => {
            // The parent may have given up.
            let mut link = link;
            let _ = write!(link, "{error:#}");
            1
        }
    };
    // Others that were forked beside this one may have the link too.
    let _ = link.shutdown(Shutdown::Both);
    // SAFETY: it ends this process, which has nothing that others wait for.
    unsafe { libc::_exit(code) }
}

/// The client, as its process tells of it.
fn beside(link: &UnixStream) -> Result<Client> {
    let (mut tells, mut hears) = (link.try_clone()?, link.try_clone()?);
    let (ready, is_ready) = sync_channel::<()>(1);
    let gone = Arc::new(AtomicBool::new(false));
    let (_ended, ended) = sync_channel::<Infallible>(1);
    let ends = Ends { gone: gone.clone(), _ended };
    thread::Builder::new().name("ready".into()).spawn(move || {
        if is_ready.recv().is_ok() {
            // A client that has gone is told of by the other thread.
            let _ = tells.write_all(&[BEGIN]);
        }
    })?;
    thread::Builder::new().name("client".into()).spawn(move || {
        let _ends = ends;
        // Nothing is ever said: it closes.
        let _ = hears.read(&mut [0]);
    })?;
    Ok(Client { ready, gone, ended })
}

/// Runs the client when it may begin, and tells the server that it has gone; and what the server's process has said of its
/// failure by then.
fn ask<T: Send>(
    together: Result<()>,
    client: impl FnOnce() -> Result<T> + Send,
    core: usize,
    link: &UnixStream,
) -> (Result<T>, Result<String>) {
    let mut said = Vec::new();
    let asked = together.and_then(|()| begun(link, &mut said)).and_then(|()| {
        thread::scope(|scope| {
            let asking = scope.spawn(|| {
                pin(core);
                client()
            });
            asking.join().map_err(|_| anyhow!("the client's thread panicked"))?
        })
    });
    let mut rest = || -> Result<String> {
        link.shutdown(Shutdown::Write)?;
        let mut link = link;
        let read = link.read_to_end(&mut said);
        let said = String::from_utf8_lossy(&said).into_owned();
        read.with_context(|| format!("the server's process does not end; it has said {said:?}"))?;
        Ok(said)
    };
    (asked, rest())
}

fn begun(mut link: &UnixStream, said: &mut Vec<u8>) -> Result<()> {
    link.set_read_timeout(Some(READY_WAIT))?;
    let mut first = [0];
    let read = link.read(&mut first).unwrap_or(0);
    if read == 1 && first[0] != BEGIN {
        said.extend(first);
    }
    ensure!(read == 1 && first[0] == BEGIN, "the server did not get ready");
    Ok(())
}

/// Waits for the server's process. One that has not ended by itself is killed.
fn end_of(process: Pid, said: Result<String>) -> Result<()> {
    if said.is_err() {
        // It has not been waited for, so that nobody else has its number.
        let _ = kill_process(process, Signal::KILL);
    }
    let status = rustix::io::retry_on_intr(|| waitpid(Some(process), WaitOptions::empty()))
        .context("waiting for a process")?;
    let said = said?;
    ensure!(said.is_empty(), "{said}");
    let code = status.and_then(|(_, status)| status.exit_status());
    ensure!(code == Some(0), "its process ended with {code:?}");
    Ok(())
}

/// Two words that one end tells the other, once, wherever the two run. Who looks makes no system call.
pub struct Notice(SoftMemory);

impl Notice {
    /// One that says nothing yet. Both ends have it if it is made before they are.
    ///
    /// # Errors
    ///
    /// What the system says.
    pub fn new() -> Result<Notice> {
        let file = memfd::create("elver-notice", BYTES, Pages::Small);
        let file = file.context("cannot make memory that two processes share")?;
        Ok(Notice(SoftMemory::map_file(&file, BYTES)?))
    }

    /// Says them.
    ///
    /// # Errors
    ///
    /// The memory has gone.
    pub fn tell(&self, words: [u64; 2]) -> Result<()> {
        self.0.write_u64(8, words[0])?;
        self.0.write_u64(16, words[1])?;
        fence(Ordering::Release);
        Ok(self.0.write_u64(0, 1)?)
    }

    /// What was said, if anything.
    ///
    /// # Errors
    ///
    /// The memory has gone.
    pub fn told(&self) -> Result<Option<[u64; 2]>> {
        if self.0.read_u64(0)? == 0 {
            return Ok(None);
        }
        fence(Ordering::Acquire);
        Ok(Some([self.0.read_u64(8)?, self.0.read_u64(16)?]))
    }
}

const BYTES: u64 = 4_096;

#[cfg(test)]
mod tests {
    use super::*;

    fn text(failed: Failure) -> String {
        match failed {
            Failure::Failed(error) => format!("{error:#}"),
            Failure::Unusable(what) | Failure::HandedOn { what, .. } => what,
        }
    }

    #[test]
    fn two_processes_tell_each_other() {
        let (there, back) = (Notice::new().unwrap(), Notice::new().unwrap());
        let own = std::process::id();
        let heard = run(
            Pair::default(),
            |client| {
                ensure!(there.told()?.is_none(), "nothing was said");
                client.begin();
                while there.told()?.is_none() {
                    ensure!(!client.is_gone(), "the client said nothing");
                    thread::yield_now();
                }
                back.tell([std::process::id().into(), 7])?;
                client.wait_gone();
                ensure!(client.is_gone(), "it has gone");
                Ok(())
            },
            || {
                there.tell([1, 2])?;
                loop {
                    if let Some(words) = back.told()? {
                        return Ok(words);
                    }
                    thread::yield_now();
                }
            },
        );
        let [process, word] = heard.unwrap_or_else(|failed| panic!("{}", text(failed)));
        assert_ne!(process, u64::from(own));
        assert_eq!(word, 7);
    }

    #[test]
    fn what_fails_at_either_end_is_told() {
        let text = |ended: Result<(), Failure>| text(ended.err().unwrap());
        let early = text(run(Pair::default(), |_| Err(anyhow!("no memory")), || Ok(())));
        assert!(early.contains("no memory") && early.contains("did not get ready"), "{early}");
        let begin = |client: &Client| -> Result<()> {
            client.begin();
            client.wait_gone();
            Ok(())
        };
        let late = text(run(
            Pair::default(),
            |client| begin(client).and_then(|()| Err(anyhow!("lost a message"))),
            || Ok(()),
        ));
        assert!(late.contains("lost a message"), "{late}");
        let client = text(run(Pair::default(), begin, || Err(anyhow!("no answer"))));
        assert!(client.contains("no answer") && !client.contains("server"), "{client}");
        let panicked = text(run(Pair::default(), |_| panic!("this is wanted"), || Ok(())));
        assert!(panicked.contains("it panicked"), "{panicked}");
        let killed = text(run(
            Pair::default(),
            |_| {
                // SAFETY: it ends the child alone.
                unsafe { libc::_exit(3) }
            },
            || Ok(()),
        ));
        assert!(killed.contains("did not get ready") && killed.contains("Some(3)"), "{killed}");
    }
}
