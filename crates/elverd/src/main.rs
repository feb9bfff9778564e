//! `elverd`, the daemon of an Elver node.
#![forbid(unsafe_code)]

mod activation;
mod arguments;
mod door;
mod last_words;
mod manual;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Parser;
use elver_node::config::{Config, DEFAULT_FILE};
use elver_node::{Node, Observer, Watchdog, Words};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;

use crate::arguments::{Arguments, CONFIG_FILE};
use crate::door::Door;
use crate::last_words::LastWords;
use crate::manual::{print, run};

/// What must not allocate is seen not to.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: elver_testkit::Counting = elver_testkit::Counting;

/// Descriptors of a node and a few sessions.
const DESCRIPTORS_MIN: u64 = 64;
/// The longest time that a daemon which ends takes to say why.
const LAST_WORDS_MAX: Duration = Duration::from_millis(500);

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(what) = &arguments.print {
        return printed(run(what));
    }
    if arguments.print_config {
        return printed(print(DEFAULT_FILE.as_bytes()));
    }
    let config = match read(arguments.config) {
        Ok((_, from)) if arguments.check => {
            return printed(print(
                match from {
                    Some(path) => format!("{} is good\n", path.display()),
                    None => format!("there is no {CONFIG_FILE}: the defaults are good\n"),
                }
                .as_bytes(),
            ));
        }
        Ok((config, _)) => config,
        Err(error) => {
            eprintln!("elverd: {error:#}");
            return ExitCode::from(2);
        }
    };
    match serve(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("elverd: {error:#}");
            ExitCode::from(1)
        }
    }
}

/// How a command ends that only prints.
fn printed(result: std::io::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("elverd: cannot write the output: {error}");
            ExitCode::from(1)
        }
    }
}

fn read(path: Option<PathBuf>) -> anyhow::Result<(Config, Option<PathBuf>)> {
    let default = PathBuf::from(CONFIG_FILE);
    match path.or_else(|| default.exists().then_some(default)) {
        Some(path) => {
            let config = Config::read(&path)?;
            // What cannot be must be told by --check too.
            config.secret()?;
            config.classes()?;
            Ok((config, Some(path)))
        }
        None => Ok((Config::default(), None)),
    }
}

fn serve(config: Config) -> anyhow::Result<()> {
    // First, while no descriptor can be another's.
    let passed = activation::take()?;
    // From here on a signal ends the daemon as it should end.
    raise_descriptors()?;
    let hangup = (!is_hangup_ignored()).then_some(SIGHUP);
    let signals = [SIGTERM, SIGINT].into_iter().chain(hangup);
    let mut signals = Signals::new(signals).context("cannot take signals")?;
    let handle = signals.handle();
    // A file in memory that is larger than files may be is an error, and not the end.
    let too_large = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGXFSZ, too_large).context("cannot take signals")?;
    // What a process does to memory that it shares with this one ends that process's session.
    elver_memory::fault::survive_faults().context("cannot take signals")?;
    let door = Door::open(&config, passed)?;
    let mut observer = Observer::new();
    if let Some(address) = config.metrics_listen()? {
        observer = observer.with_metrics(address)?;
    }
    let metrics = observer.metrics_address();
    let (listener, status, capture, path) = door.split();
    let mut node = Node::open(config.clone(), Some(listener))?;
    let registry = node.registry_address();
    let observer = observer.with_status(status, path.status());
    node.observe(observer.with_capture(capture, path.capture()))?;
    node.watch(watchdog(&config)?)?;

    let reports = node.take_reports();
    // Apart, since who reads them may take as long as they like. It ends with the node.
    std::thread::Builder::new().name("elver-reports".into()).spawn(move || {
        for report in reports.into_iter().flatten() {
            // Whoever started the daemon may have closed it.
            let _ = writeln!(std::io::stderr(), "elverd: {report}");
        }
    })?;

    let stop = Arc::new(AtomicBool::new(false));
    let stopper = node.stopper(stop.clone());
    let waiting = std::thread::Builder::new().name("elver-signals".into()).spawn(move || {
        if signals.forever().next().is_some() {
            stopper.stop();
        }
    })?;
    let tell = |what: Option<std::net::SocketAddr>| what.map_or("-".into(), |it| it.to_string());
    let ready = format!(
        "elverd ready address={} socket={} registry={} metrics={}\n",
        config.node.address,
        path.socket().display(),
        tell(registry),
        tell(metrics)
    );
    // Who started the daemon may not read it, or have it in a file on a disk that is full.
    let _ = print(ready.as_bytes());
    tell_supervisor(NotifyState::Ready);
    let result = node.run(&stop);
    tell_supervisor(NotifyState::Stopping);
    handle.close();
    // A panic of the thread was reported where it happened.
    let _ = waiting.join();
    drop(path);
    Ok(result?)
}

/// Whether who started the daemon wants it to outlive its terminal, as `nohup` does.
fn is_hangup_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & 1 << (SIGHUP - 1) != 0)
}

/// Tells systemd, or whoever else started the daemon and asked for it, how it is.
fn tell_supervisor(state: NotifyState<'_>) {
    // Who asked and does not listen has to do without.
    let _ = sd_notify::notify(&[state]);
}

/// Tells the supervisor while the engine turns, and ends the daemon when it hangs.
fn watchdog(config: &Config) -> std::io::Result<Watchdog> {
    let (hang_ms, aborts) = (config.engine.hang_ms, config.engine.hang_aborts);
    let every = sd_notify::watchdog_enabled().filter(|every| !every.is_zero());
    let turned = move || {
        if every.is_some() {
            tell_supervisor(NotifyState::Watchdog);
        }
    };
    let last = LastWords::start()?;
    let (fate, wait) = if aborts { ("; ending", LAST_WORDS_MAX) } else { ("", Duration::ZERO) };
    let hung = move |place: &Words| {
        let words = Words::of(format_args!(
            "the engine has made no round for {hang_ms} ms{fate}. It stands at: {place}"
        ));
        last.say(words, wait);
        if aborts {
            std::process::abort();
        }
    };
    Ok(Watchdog {
        hang: Duration::from_millis(hang_ms),
        every,
        turned: Box::new(turned),
        hung: Box::new(hung),
    })
}

/// A session takes three descriptors, and a region one: as many as the system permits.
fn raise_descriptors() -> anyhow::Result<()> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    if let Some(most) = maximum.filter(|most| *most < DESCRIPTORS_MIN) {
        bail!(
            "this process may open {most} files, and a node needs {DESCRIPTORS_MIN} at least, and \
             three for each session beyond: allow more (LimitNOFILE=, ulimit -Hn)"
        );
    }
    // If it is refused, fewer processes find place.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    Ok(())
}
