//! The three programs, over a pair of rings or over none.

use std::collections::VecDeque;
use std::time::Instant;

use anyhow::{Result, ensure};
use elver::{Gid, Session};
use elver_cases::flows::{Counts, RECORD, Record};
use elver_cases::http;
use elver_cases::store::{self, KEY, Store, VALUE};
use elver_cases::ycsb;
use elver_console::Failure;
use elver_testbed::apart::Notice;
use elver_testbed::pair::Client;
use elver_testbed::sample::Sample;

use super::carriage::{Carriage, Design};
use crate::args::Stage;
use crate::ring::stage::{self, wait};

/// Waits until the client has gone: what it still asks of this end's node is answered.
fn outlast(session: &Session, client: &Client) -> Result<()> {
    wait(session, || Ok(client.is_gone().then_some(())))
}

/// Replays records; the time until all are counted.
pub(super) fn count_flows(
    stage: Stage,
    design: Design,
    traffic: &[[u8; RECORD]],
) -> Result<Sample, Failure> {
    let counted = Notice::new()?;
    let mut sample = Sample::of_batches(traffic.len())?;
    if design == Design::Alone {
        let began = Instant::now();
        let mut counts = Counts::default();
        traffic.iter().for_each(|record| counts.count(&Record::decode(record)));
        sample.add(began.elapsed());
        check(&counts, traffic)?;
        return Ok(sample);
    }
    let carriage = Carriage::new(design, RECORD as u32, 8, true)?;
    let serve = |session: &Session, peer: Gid, client: &Client| {
        let mut ends = carriage.accept(session, peer, client)?;
        let mut counts = Counts::default();
        let mut record = [0; RECORD];
        for _ in traffic {
            ends.take(&mut record)?;
            counts.count(&Record::decode(&record));
        }
        counted.tell([counts.total().packets, 0])?;
        check(&counts, traffic)?;
        outlast(session, client)
    };
    stage::run(stage.into(), serve, |session, peer| {
        let mut ends = carriage.connect(session, peer)?;
        let began = Instant::now();
        for record in traffic {
            ends.outlet.send(&[record])?;
        }
        ends.outlet.flush()?;
        wait(session, || counted.told())?;
        sample.add(began.elapsed());
        Ok(sample)
    })
}

/// A figure of a network function that lost or invented a packet tells nothing.
fn check(counts: &Counts, traffic: &[[u8; RECORD]]) -> Result<()> {
    let bytes: u64 = traffic.iter().map(|record| u64::from(Record::decode(record).bytes)).sum();
    let total = counts.total();
    let is_all =
        total.packets == traffic.len() as u64 && total.bytes == bytes && counts.gaps() == 0;
    ensure!(
        is_all,
        "{total:?} with {} gaps were counted, of {} packets of {bytes} bytes",
        counts.gaps(),
        traffic.len()
    );
    Ok(())
}

/// What the database is asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Questions {
    pub(super) records: u32,
    pub(super) requests: usize,
    pub(super) under_way: usize,
}

/// Asks a database; the times of each request and of all.
pub(super) fn ask(
    stage: Stage,
    design: Design,
    store: &Store,
    questions: Questions,
) -> Result<Sample, Failure> {
    let Questions { records, requests, under_way } = questions;
    let keys: Vec<_> = ycsb::keys(records, 1).take(requests).collect();
    let mut sample = Sample::new()?;
    if design == Design::Alone {
        let all = Instant::now();
        for key in &keys {
            let began = Instant::now();
            ensure_answer(&store.answer(key)?, key)?;
            sample.record(began.elapsed());
        }
        sample.took(all.elapsed());
        return Ok(sample);
    }
    let carriage = Carriage::new(design, KEY as u32, VALUE as u32, true)?;
    let serve = |session: &Session, peer: Gid, client: &Client| {
        let mut ends = carriage.accept(session, peer, client)?;
        let mut key = [0; KEY];
        for _ in 0..requests {
            ends.take(&mut key)?;
            ends.outlet.send(&[&store.answer(&key)?])?;
        }
        ends.outlet.flush()?;
        outlast(session, client)
    };
    stage::run(stage.into(), serve, |session, peer| {
        let mut ends = carriage.connect(session, peer)?;
        let mut asked = VecDeque::with_capacity(under_way);
        let mut keys = keys.iter();
        let mut value = [0; VALUE];
        let all = Instant::now();
        loop {
            while asked.len() < under_way {
                let Some(key) = keys.next() else { break };
                asked.push_back((Instant::now(), key));
                ends.outlet.send(&[key])?;
            }
            if asked.is_empty() {
                break;
            }
            ends.take(&mut value)?;
            while let Some((began, key)) = asked.pop_front() {
                ensure_answer(&value, key)?;
                sample.record(began.elapsed());
                if asked.is_empty() || !ends.inlet.try_take(&mut value)? {
                    break;
                }
            }
        }
        sample.took(all.elapsed());
        Ok(sample)
    })
}

fn ensure_answer(value: &store::Value, key: &store::Key) -> Result<()> {
    ensure!(store::is_value_of(value, key), "not the answer for {}", String::from_utf8_lossy(key));
    Ok(())
}

/// Bytes of the file.
pub(super) const FILE: usize = 1_024;
const PATH: &str = "/file";

/// Gets a file again and again, one request under way.
pub(super) fn get_files(stage: Stage, design: Design, requests: usize) -> Result<Sample, Failure> {
    let request = http::get(PATH, "elver.example");
    let server = || http::Server::new(PATH, vec![7; FILE]);
    let response = server().answer(&request).len();
    let mut sample = Sample::new()?;
    if design == Design::Alone {
        let (mut server, mut got) = (server(), Vec::with_capacity(response));
        for _ in 0..requests {
            let began = Instant::now();
            let response = server.answer(&request);
            got.clear();
            got.extend_from_slice(response.head);
            got.extend_from_slice(response.body);
            ensure_file(&got)?;
            sample.add(began.elapsed());
        }
        return Ok(sample);
    }
    let carriage = Carriage::new(design, request.len() as u32, response as u32, false)?;
    let asked = request.len();
    let serve = |session: &Session, peer: Gid, client: &Client| {
        let mut ends = carriage.accept(session, peer, client)?;
        let (mut server, mut request) = (server(), vec![0; asked]);
        for _ in 0..requests {
            ends.take(&mut request)?;
            let response = server.answer(&request);
            ends.outlet.send(&[response.head, response.body])?;
            ends.outlet.flush()?;
        }
        outlast(session, client)
    };
    stage::run(stage.into(), serve, |session, peer| {
        let mut ends = carriage.connect(session, peer)?;
        let mut got = vec![0; response];
        for _ in 0..requests {
            let began = Instant::now();
            ends.outlet.send(&[&request])?;
            ends.outlet.flush()?;
            ends.take(&mut got)?;
            ensure_file(&got)?;
            sample.add(began.elapsed());
        }
        Ok(sample)
    })
}

fn ensure_file(response: &[u8]) -> Result<()> {
    let file = http::body(response)?;
    ensure!(file.len() == FILE, "a file of {} bytes", file.len());
    Ok(())
}
