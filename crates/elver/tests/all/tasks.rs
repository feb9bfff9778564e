//! Waiting in tasks of tokio's.

use std::rc::Rc;
use std::time::Duration;

use elver::tokio::AsyncSession;
use elver::{Completed, Error, RecvWr, SendOp, Session, SessionOptions, VqpOptions, Wc};

use crate::common::{ALL, TestNode, alone, cluster, session_at, wr};

fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let bounded = async {
        let limit = Duration::from_secs(60);
        tokio::time::timeout(limit, future).await.expect("a waking is lost")
    };
    tokio::task::LocalSet::new().block_on(&runtime, bounded)
}

fn session(node: &TestNode, spin: Duration) -> Session {
    let options = SessionOptions { spin, ..SessionOptions::default() };
    Session::connect_with(Some(&node.path), options).unwrap()
}

/// Each of many tasks takes for the others what the node told; one that slept while that happened was
/// woken by nobody. Some give up their wait in the middle, and begin another.
#[test]
fn tasks_of_one_session_wake_each_other() {
    const TASKS: u64 = 8;
    const ROUNDS: u64 = 500;
    let node = alone(190);
    for spin in [Duration::ZERO, Duration::from_micros(20)] {
        run(async {
            let session = Rc::new(AsyncSession::new(session(&node, spin)).unwrap());
            let tasks: Vec<_> = (0..TASKS)
                .map(|task| {
                    let (session, gid) = (session.clone(), node.gid);
                    tokio::task::spawn_local(async move {
                        let mr = session.session().alloc(4096, ALL).unwrap();
                        let vqp = session.session().create_vqp(VqpOptions::default()).unwrap();
                        let start = vqp.qconnect_start(gid, 0, Default::default()).unwrap();
                        session.wait_connected(&start).await.unwrap();
                        for round in 0..ROUNDS {
                            let sges = [mr.sge(8, 8)];
                            vqp.post_send(&[wr(round, SendOp::Read(mr.remote(0)), &sges)]).unwrap();
                            let mut wcs = [Wc::default()];
                            if (round + task) % 7 == 0 {
                                // Given up at its first sleep, at the latest.
                                let wait = session.wait_cq(&vqp, &mut wcs);
                                if tokio::time::timeout(Duration::ZERO, wait).await.is_ok() {
                                    continue;
                                }
                            }
                            if (round + task) % 11 == 0 {
                                // Blocks the thread, and uses up the waking that others wait for.
                                session.session().alloc(64, ALL).unwrap();
                            }
                            assert_eq!(session.wait_cq(&vqp, &mut wcs).await.unwrap(), 1);
                            assert_eq!(wcs[0].succeeded().unwrap().wr_id, round);
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
        });
    }
}

#[test]
fn messages_and_the_end_of_the_node_come_to_tasks() {
    let node = alone(191);
    let (path, gid) = (node.path.clone(), node.gid);
    run(async {
        let open = || {
            let options = SessionOptions { spin: Duration::ZERO, ..SessionOptions::default() };
            AsyncSession::new(Session::connect_with(Some(&path), options).unwrap()).unwrap()
        };
        let (server, client) = (open(), open());
        let bound = server.session().create_vqp(VqpOptions::default()).unwrap();
        let port = bound.qbind(0).unwrap();
        let into = server.session().alloc(64, ALL).unwrap();
        bound.post_recv(&[RecvWr { wr_id: 3, sges: &[into.sge(0, 64)] }]).unwrap();
        let asks = async {
            let vqp = client.session().create_vqp(VqpOptions::default()).unwrap();
            vqp.qconnect(gid, port).unwrap();
            let out = client.session().alloc(64, ALL).unwrap();
            out.write(0, b"hello").unwrap();
            vqp.post_send(&[wr(1, SendOp::Send, &[out.sge(0, 5)])]).unwrap();
            let mut wcs = [Wc::default()];
            client.wait_cq(&vqp, &mut wcs).await.unwrap();
            wcs[0].succeeded().unwrap();
            (vqp, out)
        };
        let (messages, _client) = tokio::join!(server.wait_msgs(&bound), asks);
        let messages = messages.unwrap();
        assert_eq!((messages[0].wc.wr_id, messages[0].wc.byte_len), (3, 5));
        let ends = tokio::task::spawn_blocking(move || drop(node));
        let gone = server.wait_cq(&bound, &mut [Wc::default()]).await;
        assert!(matches!(gone, Err(Error::NodeGone)), "{gone:?}");
        ends.await.unwrap();
    });
}

/// It has exchanged nothing with the other end, and nothing is posted but a receive.
#[test]
fn a_task_that_only_waits_is_woken_when_the_other_end_goes() {
    let (meta, node) = cluster(244, |_| {});
    run(async {
        let server = session_at(&meta);
        let bound = server.create_vqp(VqpOptions::default()).unwrap();
        let port = bound.qbind(0).unwrap();
        let client = AsyncSession::new(session(&node, Duration::ZERO)).unwrap();
        let vqp = client.session().create_vqp(VqpOptions::default()).unwrap();
        vqp.qconnect(meta.gid, port).unwrap();
        let into = client.session().alloc(64, ALL).unwrap();
        vqp.post_recv(&[RecvWr { wr_id: 3, sges: &[into.sge(0, 64)] }]).unwrap();
        let asked = || node.thread.status().unwrap().core["peers_answered"];
        let ends = async {
            while asked() < 2 {
                tokio::task::yield_now().await;
            }
            drop((bound, server));
        };
        let mut wcs = [Wc::default()];
        let told = async {
            // What was posted comes back, and behind it why.
            loop {
                if let Err(error) = client.wait_cq(&vqp, &mut wcs).await {
                    break error.to_string();
                }
            }
        };
        let (error, ()) = tokio::join!(told, ends);
        assert!(error.contains("127.0.244.1") && error.contains("is gone"), "{error}");
    });
}
