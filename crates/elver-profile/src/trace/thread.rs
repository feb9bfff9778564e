//! A thread that is watched: the functions that it is in, and its time.

/// A function that was called and has not returned.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    pub(super) name: String,
    back: u64,
    stack: u64,
    pub(super) begun: u64,
    /// Of its time, in system calls.
    pub(super) kernel_ns: u64,
}

/// The deepest that functions are followed: a program may leave them without returning, by longjmp.
const FRAMES_MAX: usize = 64;

#[derive(Default)]
pub(super) struct Thread {
    /// How long it stood still because it is watched.
    pub(super) stood_ns: u64,
    /// The system call that it is in, and since when.
    pub(super) system_call: Option<(u64, u64)>,
    /// The breakpoint that it steps over.
    pub(super) stepping: Option<u64>,
    frames: Vec<Frame>,
}

impl Thread {
    pub(super) fn enters(&mut self, name: String, back: u64, stack: u64, begun: u64) {
        if self.frames.len() < FRAMES_MAX {
            self.frames.push(Frame { name, back, stack, begun, kernel_ns: 0 });
        }
    }

    /// Whether it is in this call already, and in none that this one has made.
    pub(super) fn is_in(&self, name: &str, back: u64, stack: u64) -> bool {
        let is_it =
            |frame: &Frame| frame.name == name && frame.back == back && frame.stack == stack;
        self.frames.last().is_some_and(is_it)
    }

    /// The function that returns to this address: the stack is above where its return address stood. Those that it has
    /// called are over too.
    pub(super) fn returns_at(&mut self, address: u64, stack: u64) -> Option<Frame> {
        let is_it = |frame: &Frame| frame.back == address && stack > frame.stack;
        let at = self.frames.iter().rposition(is_it)?;
        let frame = self.frames.get(at).cloned();
        self.frames.truncate(at);
        frame
    }

    /// The verbs call that it is in.
    pub(super) fn outermost(&self) -> Option<&str> {
        self.frames.first().map(|frame| frame.name.as_str())
    }

    pub(super) fn add_kernel(&mut self, ns: u64) {
        self.frames.iter_mut().for_each(|frame| frame.kernel_ns += ns);
    }

    /// Another program begins. The system call that began it is not over.
    pub(super) fn forget_calls(&mut self) {
        self.frames.clear();
        self.stepping = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_return_ends_what_was_called_inside() {
        let mut thread = Thread::default();
        thread.enters("outer".into(), 0x10, 0x9000, 1);
        thread.enters("inner".into(), 0x20, 0x8000, 2);
        thread.add_kernel(5);
        assert_eq!(thread.outermost(), Some("outer"));
        assert!(thread.is_in("inner", 0x20, 0x8000) && !thread.is_in("outer", 0x10, 0x9000));
        assert!(thread.returns_at(0x20, 0x7000).is_none(), "the stack is below: a deeper call");
        assert!(thread.returns_at(0x30, 0x9008).is_none());
        let outer = thread.returns_at(0x10, 0x9008).unwrap();
        assert_eq!((outer.name.as_str(), outer.kernel_ns), ("outer", 5));
        assert_eq!(thread.outermost(), None);
    }

    #[test]
    fn functions_that_never_return_are_bounded() {
        let mut thread = Thread::default();
        for call in 0..1_000 {
            thread.enters("f".into(), 1, call, 0);
        }
        assert_eq!(thread.frames.len(), FRAMES_MAX);
    }
}
