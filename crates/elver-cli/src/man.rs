//! `elver man`: the manual pages.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Command};
use clap_mangen::Man;
use elver_console::{Failure, write};

const MAN_EXAMPLES: &str = "\
Examples:
  elver man | man -l -
      the page of elver itself
  elver man bench connect | man -l -
      the page of a command
  elver man --dir /usr/local/share/man/man1
      all pages, as files";

#[derive(Debug, Args)]
#[command(after_help = MAN_EXAMPLES)]
pub(crate) struct ManArgs {
    /// The command whose page is wanted, such as `bench connect`; by default elver's own.
    #[arg(conflicts_with = "dir")]
    pub(crate) command: Vec<String>,
    /// Write the pages of all commands into this directory instead.
    #[arg(long)]
    pub(crate) dir: Option<PathBuf>,
}

/// Prints a page of `elver`, or writes all of them.
pub(crate) fn run(args: &ManArgs, elver: Command) -> Result<(), Failure> {
    if let Some(dir) = &args.dir {
        let written =
            std::fs::create_dir_all(dir).and_then(|()| clap_mangen::generate_to(elver, dir));
        return Ok(written.with_context(|| format!("cannot write to {}", dir.display()))?);
    }
    let mut top = elver.disable_help_subcommand(true);
    // Gives each command the name of its page.
    top.build();
    let mut command = &top;
    for name in &args.command {
        command = command.find_subcommand(name).ok_or_else(|| {
            let known: Vec<&str> = command.get_subcommands().map(|one| one.get_name()).collect();
            let above = command.get_bin_name().unwrap_or_else(|| command.get_name());
            let hint = match known.as_slice() {
                [] => format!("`{above}` has no commands"),
                known => format!("those of `{above}` are: {}", known.join(", ")),
            };
            Failure::unusable(format!("there is no command `{name}`; {hint}"))
        })?;
    }
    let mut page = Vec::new();
    Man::new(command.clone()).render(&mut page)?;
    write(&page);
    Ok(())
}
