//! What becomes of containers, without any.

use std::collections::BTreeSet;

use tokio::task::LocalSet;

use super::*;
use crate::state::Programs;

/// It was made behind the end, and left.
#[tokio::test]
async fn a_container_that_is_to_be_made_when_all_end_is_not() {
    let place = tempfile::tempdir().unwrap();
    let (state, init) = (place.path().join("state"), place.path().join("init"));
    std::fs::write(&init, "a program").unwrap();
    let directory = StateDirectory::open(&state, &Programs { init: &init, module: None });
    let uid = rustix::process::geteuid().as_raw().max(1);
    let text = format!(
        "[platform]\nruntime = [\"true\"]\n[owners.a]\nuid = {uid}\n[functions.f]\nowner = \"a\"\ncode = \"/usr\"\nhandler = \"f.f\"\n"
    );
    let services = Services {
        door: |_, _, _, _| Box::pin(std::future::pending()),
        control: |_, _, _, _| Box::pin(std::future::pending()),
    };
    let config = Config::parse(&text).unwrap();
    let orchestrator = Orchestrator::new(config, directory.unwrap(), services);
    let ending = async {
        let asked = orchestrator.with(|schedule, now| schedule.request(now, "f", BTreeSet::new()));
        asked.unwrap();
        assert_eq!(orchestrator.state.borrow().schedule.containers().len(), 1);
        orchestrator.end().await;
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert_eq!(orchestrator.state.borrow().homes.len(), 0);
    };
    LocalSet::new().run_until(ending).await;
    assert_eq!(std::fs::read_dir(&state).unwrap().count(), 0);
}
