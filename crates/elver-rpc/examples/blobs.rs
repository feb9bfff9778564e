//! Large bodies in streams: one is put, and read back while short calls go on beside it.
//!
//! Run it beside a daemon: `cargo run --release --example blobs -p elver-rpc -- 2000`, in KiB.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use elver::{Gid, Session};
use elver_rpc::{
    Client, ClientOptions, Error, Method, Server, ServerOptions, Sink, Source, Status,
};

const PUT: Method<(), u64> = Method::new(1, "blobs.Put");
const GET: Method<(), u64> = Method::new(2, "blobs.Get");
const PING: Method<u64, u64> = Method::new(3, "blobs.Ping");

type Blob = Rc<RefCell<Vec<u8>>>;

/// Takes a blob.
struct Put(Blob);

impl Sink for Put {
    type Response = u64;

    fn write(&mut self, bytes: &[u8]) -> Result<(), Status> {
        self.0.borrow_mut().extend_from_slice(bytes);
        Ok(())
    }

    fn end(&mut self) -> Result<u64, Status> {
        Ok(self.0.borrow().len() as u64)
    }
}

/// Gives it back.
struct Get(Blob, usize);

impl Source for Get {
    type Response = u64;

    fn read(&mut self, room: &mut [u8]) -> Result<usize, Status> {
        let blob = self.0.borrow();
        let len = room.len().min(blob.len() - self.1);
        room[..len].copy_from_slice(&blob[self.1..self.1 + len]);
        self.1 += len;
        Ok(len)
    }

    fn end(&mut self) -> Result<u64, Status> {
        Ok(self.1 as u64)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let kilobytes: usize = std::env::args().nth(1).map_or(Ok(4_096), |number| number.parse())?;
    static STOP: AtomicBool = AtomicBool::new(false);
    let (tell, told) = mpsc::channel();
    let server = std::thread::spawn(move || serve(&tell, &STOP));
    let (gid, port) = told.recv()?;

    let session = Session::connect_default()?;
    let client = Client::connect(&session, gid, port, ClientOptions::default(), None)?;
    let mut upload = client.upload(PUT, &(), None)?;
    for kilobyte in 0..kilobytes {
        upload.write(&[kilobyte as u8; 1024])?;
    }
    let stored = upload.finish()?;

    let mut download = client.download(GET, &(), None)?;
    let (mut read, mut pings, mut some) = (0, 0, vec![0; 64 << 10]);
    loop {
        match download.read(&mut some)? {
            0 => break,
            len => read += len as u64,
        }
        // None of these waits for the stream.
        pings = client.call(PING, &pings, None)?;
    }
    assert_eq!((read, download.finish()?), (stored, stored));
    println!("{stored} bytes there and back, {pings} calls beside them");
    STOP.store(true, Ordering::Relaxed);
    server.join().expect("the server does not panic")?;
    Ok(())
}

fn serve(tell: &mpsc::Sender<(Gid, u16)>, stop: &AtomicBool) -> Result<(), Error> {
    let session = Session::connect_default().expect("a daemon is there");
    let mut server = Server::bind(&session, 0, ServerOptions::default())?;
    let blob = Blob::default();
    let stored = blob.clone();
    server.on_upload(PUT, move |(), _| Ok(Put(stored.clone())));
    server.on_download(GET, move |(), _| Ok(Get(blob.clone(), 0)));
    server.on(PING, |number, _| Ok(number + 1));
    // Nobody waits for the channel any more if main has failed.
    let _ = tell.send((session.gid(), server.port()));
    server.run(stop)
}
