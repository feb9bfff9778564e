use std::time::Duration;

use elver_portal::Layout;

/// How a session is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionOptions {
    /// How long a call looks for its answer before it sleeps: less where others have long turns on its core,
    /// unless it is a second or longer ([`crate::Session::look_on`]). A node that sleeps takes up to
    /// 100 µs to wake.
    pub spin: Duration,
    /// The rings that are asked for; the node may grant smaller ones.
    pub layout: Layout,
    /// Waits that sleep end with [`crate::Error::Interrupted`] when a signal's handler has run. One that runs
    /// while the call still looks (`spin`) does not end it; for that the handler calls
    /// [`crate::Waker::wake`].
    pub end_on_signal: bool,
    /// How long a node may say nothing to who waits for its answer, before the call ends with [`crate::Error::Silent`]; and
    /// make no room for what it is given, before it ends with [`crate::Error::TimedOut`]. It does not bound what the
    /// node was asked for, as long as the node runs; but for a goodbye at a node of an older version, which answers nothing behind
    /// it. Tasks (the feature `tokio`) wait without it. Ten seconds, unless said otherwise.
    pub patience: Duration,
}

impl Default for SessionOptions {
    fn default() -> SessionOptions {
        SessionOptions {
            spin: Duration::from_micros(200),
            layout: Layout::default(),
            end_on_signal: false,
            patience: Duration::from_secs(10),
        }
    }
}
