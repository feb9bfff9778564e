//! Lambda's clients speak HTTP over TCP to an address of their environment. In a container with nothing
//! but loopback, `elver-init` listens there, and passes bytes on to the Unix socket of the orchestrator.

use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Most connections at once of one INIT process and its children; what comes beyond is closed.
const CONNECTIONS_MAX: usize = 128;

/// Listens for as long as the container is there. Returns where.
pub(super) fn start(socket: PathBuf) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    let open = Arc::new(AtomicUsize::new(0));
    let serve = move || {
        for client in listener.incoming().flatten() {
            let guard = Open::new(&open);
            let Some(guard) = guard else { continue };
            let Ok(api) = UnixStream::connect(&socket) else { continue };
            // A thread that cannot be made closes both, as one that ends does.
            let _ = thread::Builder::new().name("relay".into()).spawn(move || {
                let _ = both_ways(&client, &api);
                drop(guard);
            });
        }
    };
    thread::Builder::new().name("relays".into()).spawn(serve)?;
    Ok(address)
}

/// Passes on until either side ends.
fn both_ways(client: &TcpStream, api: &UnixStream) -> io::Result<()> {
    client.set_nodelay(true)?;
    thread::scope(|scope| {
        scope.spawn(|| {
            let _ = io::copy(&mut &*client, &mut &*api);
            let _ = api.shutdown(Shutdown::Both);
        });
        let _ = io::copy(&mut &*api, &mut &*client);
        let _ = client.shutdown(Shutdown::Both);
    });
    Ok(())
}

/// One of the connections that may be.
struct Open(Arc<AtomicUsize>);

impl Open {
    fn new(open: &Arc<AtomicUsize>) -> Option<Open> {
        let guard = Open(open.clone());
        (open.fetch_add(1, Ordering::Relaxed) < CONNECTIONS_MAX).then_some(guard)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
