//! A plain client over the portal, and free addresses: what these tests share with the daemon's.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use elver_node::Status;
use elver_portal::{
    Answer, ClientEnd, Command, Completion, ConnectOptions, Layout, Message, PushError, Received,
    RefusalCode, Reply, Scratch, Socket, Via, VqpOptions, Welcome,
};
use elver_soft::SoftMemory;
use elver_verbs::{
    AccessFlags, Gid, Payload, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr, Sge, Wc,
};

/// Long against a busy machine; no test waits for it unless something is broken.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `done` gives something.
pub fn wait_for<T>(what: &str, mut done: impl FnMut() -> Option<T>) -> T {
    let limit = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = done() {
            return value;
        }
        assert!(Instant::now() < limit, "waited in vain for {what}");
        std::thread::yield_now();
    }
}

/// An address of 127.0.0.0/8 that no other test's node has now: nodes of a UDP port must not share
/// one, and tests of several processes run at once.
pub fn free_address() -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let pid = std::process::id();
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("127.{}.{}.{}", 64 + (pid >> 8) % 64, pid & 0xff, 1 + number)
}

/// A client of a node.
pub struct Client {
    pub socket: Socket,
    pub end: ClientEnd,
    pub welcome: Welcome,
    pub scratch: Scratch,
    next_request: u32,
    pub completions: Vec<Completion>,
    pub failed: Vec<(u32, RefusalCode)>,
    files: Vec<(u32, OwnedFd)>,
}

/// A region that the node allocated.
pub struct Region {
    pub memory: SoftMemory,
    pub addr: u64,
    pub lkey: u32,
    pub rkey: u32,
}

pub type Refused = (RefusalCode, String);

impl Client {
    /// Says hello over a socket.
    pub fn over(socket: Socket) -> Result<Client, String> {
        let layout = Layout::default();
        socket
            .send(&Message::Hello { layout, first: None }, None)
            .map_err(|error| error.to_string())?;
        loop {
            match socket.receive(true).map_err(|error| error.to_string())? {
                Received::Message(Message::Welcome(welcome), Some(file)) => {
                    let end = ClientEnd::map(file, welcome.layout).unwrap();
                    return Ok(Client {
                        socket,
                        end,
                        welcome,
                        scratch: Scratch::default(),
                        next_request: 1,
                        completions: Vec::new(),
                        failed: Vec::new(),
                        files: Vec::new(),
                    });
                }
                Received::Message(Message::Rejected { text }, _) => return Err(text),
                Received::Nothing => socket.wait(Some(PATIENCE)).unwrap(),
                other => return Err(format!("{other:?}")),
            }
        }
    }

    pub fn wake(&self) {
        if self.end.must_wake() {
            self.socket.wake().unwrap();
        }
    }

    /// Asks something and waits for the answer, which `take` reads.
    pub fn ask<T>(
        &mut self,
        command: &Command<'_>,
        take: impl Fn(Answer<'_>) -> Option<T>,
    ) -> Result<T, Refused> {
        let request = self.begin(command);
        self.answer(request, take)
    }

    pub fn begin(&mut self, command: &Command<'_>) -> u32 {
        let request = self.next_request;
        self.next_request += 1;
        assert!(self.end.command(request, command).unwrap());
        self.wake();
        request
    }

    pub fn answer<T>(
        &mut self,
        request: u32,
        take: impl Fn(Answer<'_>) -> Option<T>,
    ) -> Result<T, Refused> {
        let limit = Instant::now() + PATIENCE;
        loop {
            assert!(Instant::now() < limit, "no answer");
            match self.end.next_reply(&mut self.scratch).unwrap() {
                Some(Reply::Answer { request: of, answer }) if of == request => {
                    if let Answer::Refused(refusal) = answer {
                        return Err((refusal.code, refusal.text.to_string()));
                    }
                    return Ok(take(answer).unwrap_or_else(|| panic!("answered {answer:?}")));
                }
                Some(Reply::Answer { request, answer }) => panic!("{request}: {answer:?}"),
                Some(Reply::Completion(completion)) => self.completions.push(completion),
                Some(Reply::VqpFailed { vqp, cause }) => self.failed.push((vqp, cause.code)),
                None => std::thread::yield_now(),
            }
        }
    }

    pub fn create(&mut self) -> u32 {
        self.try_create().unwrap()
    }

    pub fn try_create(&mut self) -> Result<u32, Refused> {
        self.ask(&Command::CreateVqp(VqpOptions::default()), |answer| match answer {
            Answer::Vqp(vqp) => Some(vqp),
            _ => None,
        })
    }

    pub fn qconnect(&mut self, vqp: u32, gid: Gid, port: u16) -> Result<Via, Refused> {
        let options = ConnectOptions::default();
        self.ask(&Command::Connect { vqp, gid, port, options }, |answer| match answer {
            Answer::Connected(via) => Some(via),
            _ => None,
        })
    }

    pub fn qbind(&mut self, vqp: u32, port: u16) -> Result<u16, Refused> {
        self.ask(&Command::Bind { vqp, port }, |answer| match answer {
            Answer::Port(port) => Some(port),
            _ => None,
        })
    }

    pub fn alloc(&mut self, len: u64) -> Result<Region, Refused> {
        self.alloc_file(len, false).map(|(region, ..)| region)
    }

    /// As [`Client::alloc`], with huge pages if that is asked for; also the file, and its bytes.
    pub fn alloc_file(&mut self, len: u64, huge: bool) -> Result<(Region, OwnedFd, u64), Refused> {
        let access =
            AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE;
        let addr = 0x10_0000_0000;
        let command = Command::AllocMr { len, addr, access, huge };
        let request = self.begin(&command);
        let (lkey, rkey, file_bytes) = self.answer(request, |answer| match answer {
            Answer::Mr { lkey, rkey, file_bytes } => Some((lkey, rkey, file_bytes)),
            _ => None,
        })?;
        let file = self.file(request);
        let memory = SoftMemory::map_file(file.try_clone().unwrap(), len).unwrap();
        assert!(file_bytes >= len);
        Ok((Region { memory, addr, lkey, rkey }, file, file_bytes))
    }

    /// The file that came for a request.
    pub fn file(&mut self, request: u32) -> OwnedFd {
        loop {
            if let Some(at) = self.files.iter().position(|(of, _)| *of == request) {
                return self.files.swap_remove(at).1;
            }
            match self.socket.receive(true).unwrap() {
                Received::Message(Message::Memory { request }, Some(file)) => {
                    self.files.push((request, file));
                }
                Received::Message(Message::Wake, _) => {}
                Received::Nothing => self.socket.wait(Some(PATIENCE)).unwrap(),
                other => panic!("{other:?}"),
            }
        }
    }

    pub fn done(&mut self, command: &Command<'_>) -> Result<(), Refused> {
        self.ask(command, |answer| matches!(answer, Answer::Done).then_some(()))
    }

    /// Posts a signalled READ.
    pub fn read(&mut self, vqp: u32, region: &Region, to: u64, len: u32, remote: RemoteAddr) {
        assert!(self.try_read(vqp, region, to, len, remote));
    }

    /// As [`Client::read`]; false if the ring has no room.
    pub fn try_read(
        &mut self,
        vqp: u32,
        region: &Region,
        to: u64,
        len: u32,
        remote: RemoteAddr,
    ) -> bool {
        let posted = self.put_read(vqp, region, to, len, remote);
        self.wake();
        posted
    }

    /// As [`Client::try_read`]; a node that sleeps does not hear of it.
    pub fn put_read(
        &mut self,
        vqp: u32,
        region: &Region,
        to: u64,
        len: u32,
        remote: RemoteAddr,
    ) -> bool {
        let sges = [Sge { addr: region.addr + to, length: len, lkey: region.lkey }];
        let wr = SendWr {
            wr_id: 77,
            op: SendOp::Read(remote),
            flags: SendFlags::SIGNALED,
            payload: Payload::Sges(&sges),
            dest: None,
        };
        match self.end.send(vqp, &wr) {
            Ok(()) => true,
            Err(PushError::Full) => false,
            Err(error) => panic!("{error}"),
        }
    }

    /// Posts a receive.
    #[allow(dead_code, reason = "only the daemon's tests use it")]
    pub fn receive(&mut self, vqp: u32, sge: Sge) {
        self.end.receive(vqp, &RecvWr { wr_id: 78, sges: &[sge] }).unwrap();
        self.wake();
    }

    /// Posts a signalled SEND of bytes that it brings.
    #[allow(dead_code, reason = "only the daemon's tests use it")]
    pub fn send(&mut self, vqp: u32, bytes: &[u8]) {
        let wr = SendWr {
            wr_id: 79,
            op: SendOp::Send,
            flags: SendFlags::SIGNALED,
            payload: Payload::Inline(bytes),
            dest: None,
        };
        self.end.send(vqp, &wr).unwrap();
        self.wake();
    }

    /// The next completion.
    pub fn completion(&mut self) -> Wc {
        let limit = Instant::now() + PATIENCE;
        loop {
            if !self.completions.is_empty() {
                return self.completions.remove(0).wc;
            }
            assert!(Instant::now() < limit, "no completion");
            match self.end.next_reply(&mut self.scratch).unwrap() {
                Some(Reply::Completion(completion)) => self.completions.push(completion),
                Some(Reply::VqpFailed { vqp, cause }) => self.failed.push((vqp, cause.code)),
                Some(other) => panic!("{other:?}"),
                None => std::thread::yield_now(),
            }
        }
    }

    /// Waits until the node has ended the session.
    pub fn ended(&self) {
        wait_for("the end of the session", || match self.socket.receive(true) {
            Ok(Received::Closed) | Err(_) => Some(()),
            _ => None,
        });
    }
}

pub fn gid(address: &str) -> Gid {
    Gid::from(address.parse::<std::net::IpAddr>().unwrap())
}

/// A counter of the engine's.
pub fn engine_counter(status: &Status, name: &str) -> u64 {
    status.engine.get(name).copied().unwrap_or_else(|| panic!("{name} in {status:?}"))
}
