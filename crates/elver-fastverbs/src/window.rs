//! What a thread that is inside of libibverbs answers from the cache. Outside of that, and for other threads and sockets,
//! nothing is answered.

use std::cell::RefCell;
use std::ffi::c_void;
use std::sync::Arc;

use elver_hostcache::{HostCache, netlink};

thread_local! {
    static WINDOW: RefCell<Option<Window>> = const { RefCell::new(None) };
}

struct Window {
    cache: Arc<HostCache>,
    /// The netlink socket that libibverbs asks by, which was never connected.
    socket: usize,
    /// What it asked there, and has not received.
    asked: Option<Asked>,
    /// What receives: a function and its argument.
    receiver: (usize, usize),
}

/// What libibverbs asks the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// For all devices.
    Devices,
    /// For the character device of one.
    Chardev(u32),
}

/// What a socket's owner gets, and who takes it.
pub(crate) struct Delivery {
    /// Messages as the kernel sends them.
    pub(crate) messages: Vec<Vec<u8>>,
    pub(crate) receiver: (usize, usize),
}

/// Runs a function of libibverbs with answers from the cache at hand.
pub(crate) fn with<R>(cache: Option<Arc<HostCache>>, call: impl FnOnce() -> R) -> R {
    let window = cache.map(|cache| Window { cache, socket: 0, asked: None, receiver: (0, 0) });
    let replace = |window| WINDOW.try_with(|inside| inside.replace(window)).ok().flatten();
    let before = replace(window);
    let result = call();
    drop(replace(before));
    result
}

/// Takes a netlink socket of libibverbs over; false if the kernel is to be asked.
pub(crate) fn take_socket(socket: *const c_void, protocol: i32) -> bool {
    inside(|window| {
        let is_taken = protocol == netlink::RDMA && window.cache.has_answers();
        if is_taken {
            (window.socket, window.asked, window.receiver) = (socket as usize, None, (0, 0));
        }
        is_taken
    })
}

/// Whether this socket was taken over.
pub(crate) fn is_taken(socket: *const c_void) -> bool {
    inside(|window| window.socket != 0 && window.socket == socket as usize)
}

/// Keeps who receives, of a socket that was taken over.
pub(crate) fn set_receiver(receiver: (usize, usize)) {
    inside(|window| {
        window.receiver = receiver;
        true
    });
}

/// Keeps what was asked; false if it is something else than libibverbs asks.
pub(crate) fn ask(kind: u16, payload: &[u8]) -> bool {
    inside(|window| {
        window.asked = match kind {
            netlink::GET => Some(Asked::Devices),
            netlink::GET_CHARDEV => netlink::index(payload).map(Asked::Chardev),
            _ => None,
        };
        window.asked.is_some()
    })
}

/// The answer to what was asked: nothing if that was taken, or the cache has none.
pub(crate) fn deliver() -> Option<Delivery> {
    window(|window| {
        let bytes = |message| netlink::bytes(message, 0);
        let messages = match window.asked.take()? {
            Asked::Devices => window.cache.devices.iter().map(bytes).collect(),
            Asked::Chardev(index) => vec![bytes(window.cache.chardev(index)?)],
        };
        Some(Delivery { messages, receiver: window.receiver })
    })
}

/// An attribute in sysfs.
pub(crate) fn attribute(path: &[u8]) -> Option<Vec<u8>> {
    window(|window| window.cache.attribute(path).map(<[u8]>::to_vec))
}

fn inside(act: impl FnOnce(&mut Window) -> bool) -> bool {
    window(|window| act(window).then_some(())).is_some()
}

/// Nothing outside, and for a thread that is about to end, which others' destructors may call us in.
fn window<R>(act: impl FnOnce(&mut Window) -> Option<R>) -> Option<R> {
    let mut act = Some(act);
    let inside = |window: &RefCell<Option<Window>>| {
        let mut window = window.borrow_mut();
        act.take().and_then(|act| act(window.as_mut()?))
    };
    WINDOW.try_with(inside).ok().flatten()
}

#[cfg(test)]
mod tests {
    use elver_hostcache::{Attribute, Chardev, Message};

    use super::*;

    fn cache() -> Arc<HostCache> {
        // Index 5, as `RDMA_NLDEV_ATTR_DEV_INDEX`.
        let device =
            Message { kind: netlink::GET, flags: 2, payload: vec![8, 0, 1, 0, 5, 0, 0, 0] };
        let answer = Message { kind: netlink::GET_CHARDEV, flags: 0, payload: vec![1; 4] };
        Arc::new(HostCache {
            devices: vec![device],
            chardevs: vec![Chardev { index: 5, answer }],
            attributes: vec![Attribute { path: b"/sys/a".to_vec(), value: b"1".to_vec() }],
            ..HostCache::default()
        })
    }

    const SOCKET: *const c_void = 8 as *const c_void;
    const OTHER: *const c_void = 16 as *const c_void;

    #[test]
    fn what_is_asked_inside_is_answered() {
        with(Some(cache()), || {
            assert!(take_socket(SOCKET, netlink::RDMA) && is_taken(SOCKET) && !is_taken(OTHER));
            set_receiver((1, 2));
            assert!(ask(netlink::GET, &[]));
            let all = deliver().unwrap();
            assert_eq!((all.messages.len(), all.receiver), (1, (1, 2)));
            assert!(deliver().is_none(), "an answer comes once");
            assert!(ask(netlink::GET_CHARDEV, &[8, 0, 1, 0, 5, 0, 0, 0]));
            assert_eq!(deliver().unwrap().messages[0].len(), 20);
            assert!(ask(netlink::GET_CHARDEV, &[8, 0, 1, 0, 6, 0, 0, 0]));
            assert!(deliver().is_none(), "there is no device 6");
            assert!(!ask(netlink::GET_CHARDEV, &[]) && !ask(77, &[]));
            assert_eq!(attribute(b"/sys/a").unwrap(), b"1");
        });
    }

    #[test]
    fn outside_and_for_others_nothing_is_answered() {
        assert!(!take_socket(SOCKET, netlink::RDMA) && !ask(netlink::GET, &[]));
        assert!(attribute(b"/sys/a").is_none() && deliver().is_none());
        with(Some(cache()), || {
            assert!(!take_socket(SOCKET, 0), "a socket of another protocol");
            let elsewhere = std::thread::spawn(|| take_socket(SOCKET, netlink::RDMA));
            assert!(!elsewhere.join().unwrap());
            with(None, || assert!(!take_socket(SOCKET, netlink::RDMA)));
            assert!(take_socket(SOCKET, netlink::RDMA));
        });
        let mut partial = HostCache::clone(&cache());
        partial.chardevs.clear();
        with(Some(Arc::new(partial)), || assert!(!take_socket(SOCKET, netlink::RDMA)));
    }
}
