//! Elver's calls: a client and a server, each a thread that looks for so long before it sleeps.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use elver::{Gid, Session};
use elver_console::Failure;
use elver_ring::{ListenerOptions, Options};
use elver_rpc::{Client, ClientOptions, Limits, Method, Server, ServerOptions};
use elver_testbed::pair;
use elver_testbed::sample::{Clock, Sample};

use crate::args::Stage;
use crate::ring::stage::{self, STALL};

/// Bytes of a request, and of its response.
pub(super) const SIZE: usize = 64;
const PORT: u16 = 9;
const ECHO: Method<[u8; SIZE], [u8; SIZE]> = Method::new(1, "bench.Echo");
/// How long an end looks before it sleeps that is to look for as long as it takes.
pub(super) const SPIN: Duration = Duration::from_millis(900);
/// The server's looks for a client that is gone.
const LOOK: Duration = Duration::from_millis(10);

/// So many calls under way, each answered with what it brought.
pub(super) fn echo(
    stage: Stage,
    in_flight: u32,
    spin: Option<Duration>,
    duration: Duration,
) -> Result<Sample, Failure> {
    let spin = spin.unwrap_or(ClientOptions::default().ring.spin);
    let serve = |session: &Session, _: Gid, client: &pair::Client| {
        let limits = Limits { calls: in_flight, ..Limits::default() };
        let listener = ListenerOptions { spin, ..ServerOptions::default().listener };
        let options = ServerOptions { limits, listener, ..ServerOptions::default() };
        let mut server = Server::bind(session, PORT, options)?;
        server.on_bytes(ECHO, |request, _, response| {
            response.extend_from_slice(request);
            Ok(())
        });
        client.begin();
        while !client.is_gone() {
            if !server.poll()? {
                server.wait(Some(LOOK))?;
            }
        }
        Ok(())
    };
    stage::run(stage.into(), serve, |session, peer| {
        let mut options = ClientOptions::default();
        options.ring = Options { spin, ..options.ring };
        let client = Client::connect(session, peer, PORT, options, STALL)?;
        let mut calls = VecDeque::new();
        let mut sample = Sample::new()?;
        let mut clock = Clock::new(duration);
        while clock.goes_on(&mut sample) {
            while calls.len() < in_flight as usize {
                calls.push_back((Instant::now(), client.start(ECHO, &[1; SIZE], STALL)?));
            }
            if let Some((began, call)) = calls.pop_front() {
                call.wait()?;
                sample.record(began.elapsed());
            }
        }
        clock.finish(&mut sample);
        Ok(sample)
    })
}
