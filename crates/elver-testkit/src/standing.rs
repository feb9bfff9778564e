//! A node that stands still when a test tells it to.

use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use elver_node::Node;
use elver_node::config::Config;
use elver_portal::Socket;

/// A node on a thread of its own, which stands still when it is told to, and for good where it is told so. It ends when this
/// is dropped.
#[derive(Debug)]
pub struct Standing {
    tell: Option<mpsc::Sender<mpsc::Receiver<()>>>,
    said: mpsc::Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

impl Standing {
    /// Starts it; and the ends of two connections to it.
    ///
    /// # Panics
    /// If it cannot be opened.
    pub fn start(config: Config) -> (Standing, [Socket; 2]) {
        let (give, given) = mpsc::channel();
        let (tell, told) = mpsc::channel::<mpsc::Receiver<()>>();
        let (say, said) = mpsc::channel();
        let thread = thread::spawn(move || {
            let mut node = Node::embedded(config).unwrap();
            give.send([(); 2].map(|()| node.connect().unwrap())).unwrap();
            loop {
                node.poll();
                match told.try_recv() {
                    Ok(goes_on) => {
                        say.send(()).unwrap();
                        if goes_on.recv().is_ok() {
                            break;
                        }
                    }
                    Err(mpsc::TryRecvError::Empty) => {}
                    Err(mpsc::TryRecvError::Disconnected) => break,
                }
                thread::yield_now();
            }
            drop(node);
            let _ = say.send(());
        });
        let sockets = given.recv().unwrap();
        (Standing { tell: Some(tell), said, thread: Some(thread) }, sockets)
    }

    /// Has it stand still until this is dropped.
    ///
    /// # Panics
    /// If it has gone.
    pub fn still(&self) -> mpsc::Sender<()> {
        let (go_on, goes_on) = mpsc::channel();
        self.tell.as_ref().unwrap().send(goes_on).unwrap();
        self.said.recv().unwrap();
        go_on
    }

    /// Has it go for good where it stands.
    ///
    /// # Panics
    /// If it has gone.
    pub fn go(&self, still: mpsc::Sender<()>) {
        still.send(()).unwrap();
        self.said.recv().unwrap();
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        self.tell = None;
        // What it panicked with was said.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
