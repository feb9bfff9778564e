use elver_portal::numa;

/// Where memory of [`crate::Session::alloc_placed`] lies. Each is a wish: there is memory in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// From huge pages, as [`crate::Session::alloc_huge`].
    pub huge: bool,
    /// In a file of its own however small it is, as [`crate::Session::alloc_apart`].
    pub apart: bool,
    /// At which NUMA node.
    pub numa: Numa,
}

/// At which of the machine's NUMA nodes memory lies, as long as that one has some left. On a machine with one it makes no
/// difference, and costs nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Numa {
    /// Wherever the system puts it: near the thread of the daemon that makes it, as a rule.
    Any,
    /// At the node of the CPU that the calling thread runs on. A thread that the system may move to another node is better bound
    /// to its own before.
    #[default]
    Here,
    /// At this one, by the system's number. One that has no memory is refused.
    Node(u16),
}

impl Numa {
    /// The nodes that have memory, in order; none where the system does not tell. It is asked once.
    pub fn nodes() -> &'static [u16] {
        numa::nodes()
    }

    /// The node that the daemon is to be asked for, if there is any choice.
    pub(crate) fn near(self) -> Option<u16> {
        self.among(numa::nodes(), numa::here)
    }

    fn among(self, nodes: &[u16], here: impl FnOnce() -> Option<u16>) -> Option<u16> {
        match self {
            Numa::Any => None,
            Numa::Here if nodes.len() < 2 => None,
            // A CPU may be at a node that has no memory.
            Numa::Here => here().filter(|node| nodes.contains(node)),
            Numa::Node(node) if nodes == [node] => None,
            Numa::Node(node) => Some(node),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::thread;

    use elver_portal::{
        Answer, Command, Message, NodeEnd, Received, Refusal, RefusalCode, Request, Scratch,
        Socket, memfd,
    };
    use elver_verbs::AccessFlags;

    use super::*;
    use crate::mr::{Kind, Mr};
    use crate::silent;

    #[test]
    fn a_machine_with_one_node_has_no_choice() {
        let nobody = || panic!("nobody asks where the thread runs");
        for numa in [Numa::Any, Numa::Here, Numa::Node(3)] {
            assert_eq!(numa.among(&[3], nobody), None, "{numa:?}");
        }
        // The daemon says which there are.
        assert_eq!(Numa::Node(0).among(&[3], nobody), Some(0));
        // A system that tells of none may have some.
        assert_eq!(Numa::Here.among(&[], nobody), None);
        assert_eq!(Numa::Node(1).among(&[], nobody), Some(1));
    }

    #[test]
    fn among_several_it_is_the_threads_or_the_one_that_is_named() {
        let nodes = [0, 2];
        assert_eq!(Numa::Any.among(&nodes, || Some(2)), None);
        assert_eq!(Numa::Here.among(&nodes, || Some(2)), Some(2));
        assert_eq!(Numa::Here.among(&nodes, || Some(1)), None, "it has no memory");
        assert_eq!(Numa::Here.among(&nodes, || None), None);
        assert_eq!(Numa::Node(2).among(&nodes, || Some(0)), Some(2));
        assert_eq!(Numa::Node(1).among(&nodes, || Some(0)), Some(1));
    }

    /// A node of minor version 6: what it was asked for, until the process goes.
    fn older_node(socket: &Socket, mut end: NodeEnd) -> Vec<&'static str> {
        let (mut asked, mut scratch) = (Vec::new(), Scratch::default());
        loop {
            let request = match end.next_request(&mut scratch).unwrap() {
                Some(Request::Command { request, command: Command::AllocMrNear { .. } }) => {
                    asked.push("near");
                    let refusal = Refusal { code: RefusalCode::Unsupported, text: "what is 21?" };
                    assert!(end.answer(request, &Answer::Refused(refusal)).unwrap());
                    continue;
                }
                Some(Request::Command { request, command: Command::AllocMr { huge, .. } }) => {
                    asked.push(if huge { "huge" } else { "small" });
                    request
                }
                Some(_) => continue,
                None if matches!(socket.receive(false), Ok(Received::Closed) | Err(_)) => {
                    return asked;
                }
                None => {
                    thread::yield_now();
                    continue;
                }
            };
            let file = memfd::create("test", memfd::HUGE_PAGE, memfd::Pages::Small).unwrap();
            socket.send(&Message::Memory { request }, Some(file.as_fd())).unwrap();
            let answer = Answer::Mr { lkey: request, rkey: 6, file_bytes: memfd::HUGE_PAGE };
            assert!(end.answer(request, &answer).unwrap());
        }
    }

    #[test]
    fn an_older_node_makes_memory_wherever_it_likes_and_is_asked_once() {
        let (session, socket, end) = silent::session();
        let node = thread::spawn(move || older_node(&socket, end));
        for huge in [false, true] {
            let kind = Kind { huge, near: Some(0), ..Kind::default() };
            let mr = Mr::alloc(&session, 4_096, AccessFlags::LOCAL_WRITE, kind).unwrap();
            mr.write_u64(4_088, 7).unwrap();
            assert_eq!(mr.read_u64(4_088).unwrap(), 7);
        }
        drop(session);
        assert_eq!(node.join().unwrap(), ["near", "small", "huge"]);
    }
}
