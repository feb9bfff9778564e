//! Taking connections, for as long as there is a listener: an error is of one connection, or passes.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};
use std::time::Duration;

/// How long to wait after an error, as where there are too many open files: some are closed meanwhile.
const AGAIN: Duration = Duration::from_millis(20);

/// The next connection that a listener's `poll_accept` gives.
pub(crate) async fn next<T>(mut accept: impl FnMut(&mut Context<'_>) -> Poll<io::Result<T>>) -> T {
    loop {
        match poll_fn(&mut accept).await {
            Ok(connection) => return connection,
            Err(_) => tokio::time::sleep(AGAIN).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_goes_on_after_errors() {
        let mut errors = 0;
        let begun = tokio::time::Instant::now();
        let next = next(|_| match errors {
            0..100 => {
                errors += 1;
                Poll::Ready(Err(rustix::io::Errno::MFILE.into()))
            }
            _ => Poll::Ready(Ok("here")),
        });
        assert_eq!(next.await, "here");
        // It did not spin.
        assert_eq!(begun.elapsed(), 100 * AGAIN);
    }
}
