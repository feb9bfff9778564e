//! `elver man`: the manual pages.

use anyhow::Context;
use clap::CommandFactory;
use clap_mangen::Man;

use crate::cli::{Cli, ManArgs};
use crate::exit::Failure;
use crate::out;

/// Prints a page, or writes all of them.
pub(crate) fn run(args: &ManArgs) -> Result<(), Failure> {
    if let Some(dir) = &args.dir {
        let written = std::fs::create_dir_all(dir)
            .and_then(|()| clap_mangen::generate_to(Cli::command(), dir));
        return Ok(written.with_context(|| format!("cannot write to {}", dir.display()))?);
    }
    let mut top = Cli::command().disable_help_subcommand(true);
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
    out::write(&page);
    Ok(())
}
