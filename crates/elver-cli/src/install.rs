//! `elver install`: puts in place what an installed program lacks: manual pages, completions, the
//! daemon's configuration and its units; not the libraries of `elver run`, which cargo does not build with it. Packages are made by it too (`scripts/package`), so that what
//! belongs to an installation stands here alone.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use clap::Args;
use clap_complete::Shell;
use elver_console::Failure;
use elver_node::config::DEFAULT_FILE;
use elver_testbed::programs::Programs;

const SERVICE: &str = include_str!("../files/elverd.service");
const SOCKET: &str = include_str!("../files/elverd.socket");
const DISSECTOR: &str = include_str!("../files/elver.lua");
/// Where the units of contrib/ have the daemon.
const UNIT_PROGRAM: &str = "/usr/bin/elverd";

const EXAMPLES: &str = "\
Examples:
  cargo install --path crates/elver-cli && cargo install --path crates/elverd
  sudo ~/.cargo/bin/elver install
      all of it, below /usr/local and /etc; then: systemctl enable --now elverd.service. The libraries of
      `elver run` are not part of it: `cargo xtask preload` makes target/release/lib/elver, which belongs
      into /usr/local/lib
  elver install --destdir /tmp/stage --prefix /usr
      into a directory from which a package is made
  elver install --list
      what it would write";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct InstallArgs {
    /// Where programs and their pages go.
    #[arg(long, value_name = "DIRECTORY", default_value = "/usr/local")]
    prefix: PathBuf,
    /// Put everything below this directory, as if it were the root.
    #[arg(long, value_name = "DIRECTORY")]
    destdir: Option<PathBuf>,
    /// Only print the files that it would write.
    #[arg(long)]
    list: bool,
}

/// A file of an installation.
struct Piece {
    path: PathBuf,
    bytes: Vec<u8>,
    mode: u32,
    /// Its owner may have changed it: it is not replaced.
    is_kept: bool,
}

/// Puts everything in place, and says what.
pub(crate) fn run(
    args: &InstallArgs,
    elver: &clap::Command,
    programs: &Programs,
) -> Result<(), Failure> {
    if !args.prefix.is_absolute() {
        return Err(Failure::unusable("--prefix is an absolute path; see --destdir"));
    }
    let mut told = String::new();
    for piece in pieces(&args.prefix, elver, programs)? {
        let path = below(args.destdir.as_deref(), &piece.path);
        if args.list {
            told += &format!("{}\n", path.display());
            continue;
        }
        let is_written = put(&path, &piece).map_err(|error| {
            let may = error.kind() != io::ErrorKind::PermissionDenied;
            let help = if may { "" } else { "; run it as root, or see --destdir" };
            anyhow::Error::new(error).context(format!("cannot write {}{help}", path.display()))
        })?;
        told += &format!("{}{}\n", path.display(), if is_written { "" } else { " (kept)" });
    }
    elver_console::write(told.as_bytes());
    Ok(())
}

/// Everything, by the paths that it has when it is installed.
fn pieces(
    prefix: &Path,
    elver: &clap::Command,
    programs: &Programs,
) -> Result<Vec<Piece>, Failure> {
    let daemon = programs.elverd()?;
    let own = |arguments: &[&str]| output(programs.own(), arguments);
    let its = |arguments: &[&str]| output(&daemon, arguments);
    let text = |path: PathBuf, bytes: Vec<u8>| Piece { path, bytes, mode: 0o644, is_kept: false };
    let program = |name: &str, from: &Path| -> anyhow::Result<Piece> {
        let bytes = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
        Ok(Piece { path: prefix.join("bin").join(name), bytes, mode: 0o755, is_kept: false })
    };
    let mut pieces = vec![program("elver", programs.own())?, program("elverd", &daemon)?];

    let share = prefix.join("share");
    for command in commands(elver) {
        let page =
            format!("elver{}.1", command.iter().map(|name| format!("-{name}")).collect::<String>());
        let mut arguments = vec!["man"];
        arguments.extend(command.iter().map(String::as_str));
        pieces.push(text(share.join("man/man1").join(page), own(&arguments)?));
    }
    pieces.push(text(share.join("man/man8/elverd.8"), its(&["man"])?));
    for (shell, directory, before, after) in [
        (Shell::Bash, "bash-completion/completions", "", ""),
        (Shell::Zsh, "zsh/site-functions", "_", ""),
        (Shell::Fish, "fish/vendor_completions.d", "", ".fish"),
    ] {
        let arguments = ["completions", &shell.to_string()];
        for (name, script) in [("elver", own(&arguments)?), ("elverd", its(&arguments)?)] {
            let file = format!("{before}{name}{after}");
            pieces.push(text(share.join(directory).join(file), script));
        }
    }
    pieces.push(text(share.join("elver/wireshark/elver.lua"), DISSECTOR.into()));

    // What a distribution installs, and what the machine's owner does, systemd keeps apart.
    let units = match prefix == Path::new("/usr") {
        true => prefix.join("lib/systemd/system"),
        false => PathBuf::from("/etc/systemd/system"),
    };
    let daemon = prefix.join("bin/elverd").display().to_string();
    for (name, unit) in [("elverd.service", SERVICE), ("elverd.socket", SOCKET)] {
        pieces.push(text(units.join(name), unit.replace(UNIT_PROGRAM, &daemon).into()));
    }
    let config = text("/etc/elver/elverd.toml".into(), DEFAULT_FILE.into());
    pieces.push(Piece { is_kept: true, ..config });
    Ok(pieces)
}

/// The commands that have pages of their own, `elver` itself first.
fn commands(elver: &clap::Command) -> Vec<Vec<String>> {
    let mut all = vec![vec![]];
    let mut rest: Vec<(Vec<String>, &clap::Command)> = vec![(vec![], elver)];
    while let Some((names, command)) = rest.pop() {
        for one in command.get_subcommands().filter(|one| !one.is_hide_set()) {
            let names = [&names[..], &[one.get_name().to_string()]].concat();
            all.push(names.clone());
            rest.push((names, one));
        }
    }
    all
}

/// What a program of ours prints.
fn output(program: &Path, arguments: &[&str]) -> anyhow::Result<Vec<u8>> {
    let what = || format!("{} {}", program.display(), arguments.join(" "));
    let output = Command::new(program).args(arguments).output().with_context(what)?;
    anyhow::ensure!(output.status.success() && !output.stdout.is_empty(), "{} failed", what());
    Ok(output.stdout)
}

fn below(destdir: Option<&Path>, path: &Path) -> PathBuf {
    match destdir {
        Some(directory) => directory.join(path.strip_prefix("/").unwrap_or(path)),
        None => path.to_path_buf(),
    }
}

/// Makes those that are missing, which everybody enters, whatever the umask.
fn make_directories(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(above) = path.parent().filter(|above| *above != Path::new("")) {
        make_directories(above)?;
    }
    match fs::create_dir(path) {
        Ok(()) => fs::set_permissions(path, Permissions::from_mode(0o755)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(error) => Err(error),
    }
}

/// Writes a file in place of an old one, whole; false if the one that is there is kept.
fn put(path: &Path, piece: &Piece) -> io::Result<bool> {
    if piece.is_kept && path.exists() {
        return Ok(false);
    }
    let directory = path.parent().unwrap_or(Path::new("/"));
    make_directories(directory)?;
    // Beside it, since a program that runs cannot be written.
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(piece.mode);
    let written = options.open(&beside).and_then(|mut file| {
        file.write_all(&piece.bytes)?;
        // Whatever the umask.
        file.set_permissions(Permissions::from_mode(piece.mode))
    });
    if let Err(error) = written.and_then(|()| fs::rename(&beside, path)) {
        // It may not even be there.
        let _ = fs::remove_file(&beside);
        return Err(error);
    }
    Ok(true)
}
