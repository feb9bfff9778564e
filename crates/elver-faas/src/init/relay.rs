//! Lambda's clients speak HTTP over TCP to an address of their environment. In a container with nothing
//! but loopback, `elver-init` listens there, and passes bytes on to the Unix socket of the orchestrator. One thread does so
//! for all INIT processes: threads count as the owner's processes, of which there is a limit.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::runtime::{Builder, Handle};
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinSet};

use crate::accepting;

/// Most connections at once of one INIT process and its children; what comes beyond waits.
const CONNECTIONS_MAX: usize = 128;

/// Most connections at once of all: each is two of the 1,024 files that `elver-init` may have open.
const ALL_CONNECTIONS_MAX: usize = 400;

/// The thread.
#[derive(Debug)]
pub(super) struct Relays {
    executor: Handle,
    room: Arc<Semaphore>,
}

/// Where one INIT process's client asks. It and its connections end when this is dropped.
#[derive(Debug)]
pub(super) struct Relay {
    pub(super) address: SocketAddr,
    serving: AbortHandle,
}

impl Relays {
    pub(super) fn start() -> io::Result<Relays> {
        let executor = Builder::new_current_thread().enable_all().build()?;
        let handle = executor.handle().clone();
        let serve = move || executor.block_on(std::future::pending::<()>());
        thread::Builder::new().name("relays".into()).spawn(serve)?;
        Ok(Relays { executor: handle, room: Arc::new(Semaphore::new(ALL_CONNECTIONS_MAX)) })
    }

    /// Listens for an INIT process.
    pub(super) fn open(&self, socket: PathBuf) -> io::Result<Relay> {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let _within = self.executor.enter();
        let listener = TcpListener::from_std(listener)?;
        let serving = self.executor.spawn(serve(listener, socket, self.room.clone()));
        Ok(Relay { address, serving: serving.abort_handle() })
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(listener: TcpListener, socket: PathBuf, room: Arc<Semaphore>) {
    let own = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    // Aborting this ends the connections too.
    let mut connections = JoinSet::new();
    loop {
        let (Ok(one), Ok(of_all)) =
            (own.clone().acquire_owned().await, room.clone().acquire_owned().await)
        else {
            return;
        };
        let (client, _) = accepting::next(|cx| listener.poll_accept(cx)).await;
        while connections.try_join_next().is_some() {}
        let socket = socket.clone();
        connections.spawn(async move {
            // What ends one side ends the other, which its peer sees.
            let _ = both_ways(client, &socket).await;
            drop((one, of_all));
        });
    }
}

/// Passes on until either side ends. A client that ends its own side alone gets no more answer, as of any server here: it
/// could not be told from one that has gone, and a request that one waited for would be lost with it.
async fn both_ways(mut client: TcpStream, socket: &Path) -> io::Result<()> {
    client.set_nodelay(true)?;
    let mut api = UnixStream::connect(socket).await?;
    let (mut from_client, mut to_client) = client.split();
    let (mut from_api, mut to_api) = api.split();
    tokio::select! {
        passed = tokio::io::copy(&mut from_client, &mut to_api) => passed.map(drop),
        passed = tokio::io::copy(&mut from_api, &mut to_client) => passed.map(drop),
    }
}
