//! Checks of functions' code, in threads: a file system that does not answer (NFS, FUSE) keeps nobody else waiting.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, oneshot};

/// Those that go on, one of an owner at a time: one that has no answer has its thread for as long.
#[derive(Debug, Default)]
pub(super) struct CodeChecks {
    turns: RefCell<BTreeMap<String, Arc<Semaphore>>>,
}

impl CodeChecks {
    /// Makes one of an owner's, which may take so long. The error is why the code is not mounted.
    pub(super) async fn make(
        &self,
        owner: &str,
        most: Duration,
        check: impl FnOnce() -> Result<(), String> + Send + 'static,
    ) -> Result<(), String> {
        let new = || Arc::new(Semaphore::new(1));
        let turn = self.turns.borrow_mut().entry(owner.into()).or_insert_with(new).clone();
        let checking = async {
            let turn = turn.acquire_owned().await.map_err(|error| error.to_string())?;
            let (tell, told) = oneshot::channel();
            let thread = std::thread::Builder::new().name("code".into()).spawn(move || {
                let checked = check();
                drop(turn);
                // Nobody may wait for it any more.
                let _ = tell.send(checked);
            });
            thread.map_err(|error| format!("its code cannot be checked: {error}"))?;
            told.await.unwrap_or_else(|_| Err("the check of its code broke off".into()))
        };
        tokio::time::timeout(most, checking).await.unwrap_or_else(|_| {
            let most = most.as_millis();
            Err(format!(
                "its code cannot be checked: no answer of the file system within {most} ms"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// It stopped the whole platform.
    #[tokio::test]
    async fn a_file_system_that_does_not_answer_stops_its_owners_starts_alone() {
        let (short, long) = (Duration::from_millis(10), Duration::from_secs(60));
        let checks = CodeChecks::default();
        let (answer, stuck) = mpsc::channel::<()>();
        let waits = move || stuck.recv().map_err(|error| error.to_string());
        let why = checks.make("a", short, waits).await.unwrap_err();
        assert!(why.contains("no answer"), "{why}");
        checks.make("b", long, || Ok(())).await.unwrap();
        let again = checks.make("a", short, || unreachable!("a second thread")).await;
        assert!(again.unwrap_err().contains("no answer"));
        answer.send(()).unwrap();
        checks.make("a", long, || Ok(())).await.unwrap();
        let told = checks.make("a", long, || Err("it is wrong".into())).await;
        assert_eq!(told.unwrap_err(), "it is wrong");
    }
}
