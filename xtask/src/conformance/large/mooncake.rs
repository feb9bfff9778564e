//! Mooncake's transfer engine. Where it finds no device it would speak TCP and not say so: the counters tell.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::super::process::{Call, last_line};
use super::super::programs::free_port;
use super::dlslime;
use super::stage::{SECONDS, Said, Stage, borrowed, succeeded};

/// One thread a device: it has two by default, which look at memory without a pause, as the program that waits for them does, so that
/// on two cores each waits for another one's slice to end, whatever the device.
const THREADS: (&str, &str) = ("MC_WORKERS_PER_CTX", "1");

/// Its engine in two processes of Python: what was written and read is compared.
pub(super) fn moves(stage: &Stage<'_>) -> Result<Said> {
    let over = stage.moved("mooncake", &[("MOVE_PROTOCOL", "rdma"), THREADS], false)?;
    let mut measured = over.clone();
    if stage.place.is_host() {
        let tcp = stage.moved("mooncake", &[("MOVE_PROTOCOL", "tcp"), THREADS], true)?;
        measured = format!("{over}; over its own TCP {tcp}");
    }
    Ok(Said { measured, ..Said::default() })
}

/// Its bench, as it is.
pub(super) fn bench(stage: &Stage<'_>) -> Result<Said> {
    let over = benched(stage, "rdma")?;
    let mut measured = over.clone();
    if stage.place.is_host() {
        measured = format!("{over}; over its own TCP {}", benched(stage, "tcp")?);
    }
    Ok(Said { measured, ..Said::default() })
}

fn benched(stage: &Stage<'_>, protocol: &str) -> Result<String> {
    let program = stage.installed.program("moving", "transfer_engine_bench");
    let program = program.to_str().context("a path of UTF-8")?;
    let [there, here] = &stage.place.addresses;
    let transport = format!("--protocol={protocol}");
    let common = [
        program,
        "--metadata_server=P2PHANDSHAKE",
        &transport,
        "--device_name=elver0",
        "--buffer_size=67108864",
    ];
    let name = format!("--local_server_name={there}:12345");
    let words = [&common[..], &["--mode=target", &name]].concat();
    let [before, at_client] = &stage.place.before;
    let bare = protocol == "tcp";
    let call = Call { before, words: &words, bare, env: &[THREADS] };
    let mut target = stage.runner.start(&call, Path::new("/"))?;
    let heard = target.hear(&format!("listening on {there}:"));
    let port = match heard {
        Ok(port) => port,
        Err(error) => {
            target.stop()?;
            return Err(error);
        }
    };
    let name = format!("--local_server_name={here}:12346");
    let segment = format!("--segment_id={there}:{}", port.trim());
    let seconds = format!("--duration={SECONDS}");
    let load = ["--threads=1", "--batch_size=4", "--block_size=65536"];
    let words = [&common[..], &["--mode=initiator", &name, &segment, &seconds], &load].concat();
    let call = Call { before: at_client, words: &words, bare, env: &[THREADS] };
    let ended = stage.runner.start(&call, Path::new("/"))?.end();
    target.stop()?;
    let ended = ended?;
    succeeded("transfer_engine_bench", &ended)?;
    let counts = ended.said.split_once("batch count ").map(|(_, rest)| rest);
    let count = counts.and_then(|rest| rest.split(',').next()?.parse::<u64>().ok());
    let count = count.with_context(|| format!("it counted nothing: {}", last_line(&ended.said)))?;
    ensure!(count > 0, "it moved nothing");
    // Its own words have two digits after the point of GB/s.
    let seconds: u64 = SECONDS.parse()?;
    Ok(format!("{} MB/s", count * 4 * 65_536 / seconds / 1_000_000))
}

impl Stage<'_> {
    /// Runs `move.py` at both ends, and returns what it says of its speed.
    pub(super) fn moved(&self, library: &str, env: &[(&str, &str)], bare: bool) -> Result<String> {
        let environment = if library == dlslime::NAME { dlslime::NAME } else { "moving" };
        let python = self.installed.program(environment, "python");
        let port = free_port()?.to_string();
        let [there, here] = &self.place.addresses;
        let target = [library, "target", there, here, &port, SECONDS];
        let mover = [library, "mover", here, there, &port, SECONDS];
        let [target, mover] =
            [self.script(&python, "move.py", &target)?, self.script(&python, "move.py", &mover)?];
        let [target, mover] = [borrowed(&target), borrowed(&mover)];
        let [at_target, at_mover] = &self.place.before;
        let target = Call { before: at_target, words: &target, env, bare };
        let mover = Call { before: at_mover, words: &mover, env, bare };
        let serving = self.runner.start(&target, Path::new("/"))?;
        let moving = self.runner.start(&mover, Path::new("/"))?.end();
        let (serving, moving) = match moving {
            Ok(moving) if moving.status.success() => (serving.end()?, moving),
            Ok(moving) => (serving.stop()?, moving),
            Err(error) => {
                serving.stop()?;
                return Err(error);
            }
        };
        succeeded("the mover", &moving)?;
        succeeded("the target", &serving)?;
        let rate = moving.said.lines().find_map(|line| line.strip_prefix("same, "));
        Ok(rate.context("the mover does not say that it read the same")?.to_string())
    }
}
