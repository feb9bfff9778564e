//! Whose the daemon's sockets are, and who may connect to them; and where its first line goes.

use std::fs::{self, Permissions};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use elver_portal::Listener;
use rustix::process::Signal;

use crate::common::daemon::{Daemon, Directory, clean, elverd, toml};
use crate::common::{Client, free_address, wait_for};

/// A daemon of its own address, behind a command of the shell's.
fn behind(directory: &Directory, socket: &Path, shell: &str) -> Command {
    let text = toml(&free_address(), socket, "");
    configured(&directory.file("behind.toml", &text), shell)
}

fn configured(config: &Path, shell: &str) -> Command {
    let mut command = clean(Command::new("bash"));
    command.args(["-c", &format!("{shell} exec \"$0\" \"$@\"")]);
    command.args([env!("CARGO_BIN_EXE_elverd"), "--config"]).arg(config);
    command
}

/// A socket as systemd makes it, with this mode, and the words of a shell that pass it on.
fn passed(path: &Path, mode: u32) -> (Listener, String) {
    let listener = Listener::bind(path).unwrap();
    rustix::io::fcntl_setfd(&listener, rustix::io::FdFlags::empty()).unwrap();
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    let number = std::os::fd::AsFd::as_fd(&listener).as_raw_fd();
    (listener, format!("exec 3<&{number}; export LISTEN_FDS=1 LISTEN_PID=$$;"))
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn status_of(socket: &Path) -> PathBuf {
    elver_node::config::status_path(socket)
}

fn is_taken(refused: &Output) {
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(text.contains("another elverd serves"), "{text}");
}

#[test]
fn a_second_daemon_leaves_the_first_one_its_passed_socket() {
    let directory = Directory::new();
    let path = directory.path.join("a.sock");
    let (_listener, shell) = passed(&path, 0o666);
    let daemon = Daemon::run(behind(&directory, &path, &shell));
    let other = directory.file("other.toml", &toml(&free_address(), &path, ""));
    is_taken(&elverd().arg("--config").arg(&other).output().unwrap());
    // Nor does one to which the same socket is passed.
    is_taken(&configured(&other, &shell).output().unwrap());
    let mut client = Client::connect(&daemon.socket).unwrap();
    client.create();
    assert_eq!(daemon.status().sessions.len(), 1);
}

/// As systemd does for a daemon that nobody has needed yet.
#[test]
fn a_socket_at_which_somebody_else_listens_is_left_to_him() {
    let directory = Directory::new();
    let path = directory.path.join("a.sock");
    // Not one that is passed on: what another test starts meanwhile would have it too.
    let listener = Listener::bind(&path).unwrap();
    let config = directory.file("a.toml", &toml(&free_address(), &path, ""));
    is_taken(&elverd().arg("--config").arg(&config).output().unwrap());
    assert!(path.exists());
    // When he has gone it is a leftover.
    drop(listener);
    let mut command = elverd();
    let daemon = Daemon::run({
        command.arg("--config").arg(config);
        command
    });
    Client::connect(&daemon.socket).unwrap();
}

#[test]
fn a_passed_socket_opens_to_whom_its_unit_and_the_configuration_let_in() {
    let directory = Directory::new();
    for (number, (unit, configured, expected)) in
        [(0o666, "0600", 0o600), (0o660, "0666", 0o660), (0o660, "0606", 0o600)]
            .into_iter()
            .enumerate()
    {
        let path = directory.path.join(format!("{number}.sock"));
        let (_listener, shell) = passed(&path, unit);
        let text = toml(&free_address(), &path, "");
        let text = text.replacen("[meta]", &format!("socket.mode = \"{configured}\"\n[meta]"), 1);
        let config = directory.file(&format!("{number}.toml"), &text);
        let _daemon = Daemon::run(self::configured(&config, &shell));
        assert_eq!(mode(&path), expected, "{unit:o} {configured}");
        assert_eq!(mode(&status_of(&path)), expected, "{unit:o} {configured}");
    }
}

#[test]
fn others_get_through_to_the_socket_under_any_umask() {
    let directory = Directory::new();
    let place = directory.path.join("made");
    let _daemon = Daemon::run(behind(&directory, &place.join("a.sock"), "umask 077;"));
    assert_eq!(mode(&place), 0o755);
    assert_eq!(mode(&place.join("a.sock")), 0o666);
}

/// On a disk that is full, or without a reader: its first line is nobody's need.
#[test]
fn it_serves_though_it_cannot_say_that_it_is_ready() {
    let directory = Directory::new();
    let socket = directory.path.join("a.sock");
    // The test hears of it by a line of the shell's, which is as the daemon's would be.
    let line = format!(
        "echo elverd ready address=- socket={} registry=- metrics=-; exec >/dev/full;",
        socket.display()
    );
    let mut daemon = Daemon::run(behind(&directory, &socket, &line));
    let mut client = wait_for("a session", || Client::connect(&socket).ok());
    client.create();
    assert_eq!(daemon.signal(Signal::TERM).code(), Some(0));
}

#[test]
fn a_check_that_cannot_be_told_fails() {
    let directory = Directory::new();
    let config = directory.file("a.toml", "");
    let mut command = elverd();
    command.args(["--check", "--config"]).arg(&config);
    command.stdout(fs::File::options().write(true).open("/dev/full").unwrap());
    let refused = command.stderr(Stdio::piped()).output().unwrap();
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let text = String::from_utf8(refused.stderr).unwrap();
    assert!(text.starts_with("elverd: cannot write the output: No space left"), "{text}");
}

/// A closed terminal ends it as a signal does that means it, unless it was started to outlive that.
#[test]
fn a_hangup_ends_it_as_it_should_end() {
    let directory = Directory::new();
    let socket = directory.path.join("a.sock");
    // Whoever runs this may be meant to outlive its terminal, and have it inherited.
    let heeds = "exec env --default-signal=HUP \"$0\" \"$@\";";
    let mut daemon = Daemon::run(behind(&directory, &socket, heeds));
    assert_eq!(daemon.signal(Signal::HUP).code(), Some(0));
    assert!(!socket.exists() && !status_of(&socket).exists());
    let mut daemon = Daemon::run(behind(&directory, &socket, "trap '' HUP;"));
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(daemon.pid()).unwrap(),
        Signal::HUP,
    )
    .unwrap();
    // It would have gone before it answers.
    for _ in 0..3 {
        Client::connect(&socket).unwrap().create();
        let mut text = String::new();
        let told = std::os::unix::net::UnixStream::connect(status_of(&socket));
        told.unwrap().read_to_string(&mut text).unwrap();
    }
    assert_eq!(daemon.signal(Signal::TERM).code(), Some(0));
}
