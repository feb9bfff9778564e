//! `elver man`: the manual pages.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Arg, ArgAction, Args, Command};
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
    let mut top = elver.disable_help_subcommand(true);
    // Gives each command the name of its page.
    top.build();
    if let Some(dir) = &args.dir {
        let written = std::fs::create_dir_all(dir).and_then(|()| write_all(&top, dir));
        return Ok(written.with_context(|| format!("cannot write to {}", dir.display()))?);
    }
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
    write(&page(command)?);
    Ok(())
}

fn write_all(command: &Command, dir: &Path) -> io::Result<()> {
    for one in command.get_subcommands().filter(|one| !one.is_hide_set()) {
        write_all(one, dir)?;
    }
    std::fs::write(dir.join(Man::new(command.clone()).get_filename()), page(command)?)
}

/// A page: its foot names the version, its synopsis the values of options, and its examples keep their lines.
pub(crate) fn page(command: &Command) -> io::Result<Vec<u8>> {
    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let version = concat!("elver ", env!("CARGO_PKG_VERSION"));
    let man =
        Man::new(command.clone().override_usage(usage(command))).source(version).manual("Elver");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    if command.get_arguments().any(|one| !one.is_hide_set()) {
        man.render_options_section(&mut page)?;
    }
    if command.get_subcommands().any(|one| !one.is_hide_set()) {
        man.render_subcommands_section(&mut page)?;
    }
    page.extend(behind(&help).into_bytes());
    Ok(page)
}

/// How a command is called, with the values that its options take.
fn usage(command: &Command) -> String {
    let mut words = vec![command.get_bin_name().unwrap_or_else(|| command.get_name()).to_string()];
    let shown = || command.get_arguments().filter(|one| !one.is_hide_set());
    let asked =
        |one: &Arg, word: String| if one.is_required_set() { word } else { format!("[{word}]") };
    for option in shown().filter(|one| !one.is_positional()) {
        let name = match (option.get_long(), option.get_short()) {
            (Some(long), _) => format!("--{long}"),
            (None, Some(short)) => format!("-{short}"),
            (None, None) => continue,
        };
        let takes = option.get_num_args().filter(|count| count.takes_values());
        let value = takes.map(|count| match count.min_values() {
            0 => format!(" [{}]", value(option)),
            _ => format!(" {}", value(option)),
        });
        words.push(asked(option, name + &value.unwrap_or_default()));
    }
    for positional in shown().filter(|one| one.is_positional()) {
        let dashes = if positional.is_last_set() { "-- " } else { "" };
        words.push(asked(positional, format!("{dashes}{}", value(positional))));
    }
    if command.has_subcommands() {
        words.push(
            if command.is_subcommand_required_set() { "COMMAND" } else { "[COMMAND]" }.into(),
        );
    }
    words.join(" ")
}

fn value(arg: &Arg) -> String {
    let names = arg.get_value_names().unwrap_or_default();
    let many = matches!(arg.get_action(), ArgAction::Append)
        || arg.get_num_args().is_some_and(|count| count.max_values() > 1);
    format!("{}{}", names.join(" "), if many { "…" } else { "" })
}

/// What stands behind the help: examples as they are, and paragraphs.
fn behind(help: &str) -> String {
    let mut roff = String::new();
    for (number, block) in help.split("\n\n").filter(|block| !block.trim().is_empty()).enumerate() {
        let block = match block.strip_prefix("Examples:\n") {
            Some(examples) => {
                roff += ".SH EXAMPLES\n";
                examples
            }
            None => {
                roff += if number == 1 { ".SH NOTES\n" } else { ".PP\n" };
                block
            }
        };
        let is_laid_out = block.starts_with(' ');
        roff += if is_laid_out { ".nf\n" } else { "" };
        for line in block.lines() {
            roff += &format!("\\&{}\n", escaped(line.strip_prefix("  ").unwrap_or(line)));
        }
        roff += if is_laid_out { ".fi\n" } else { "" };
    }
    roff
}

/// Text for roff, in which a hyphen and a quote stay what they are.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq").replace('`', "\\(ga")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_stand_behind_examples() {
        let roff = behind("Examples:\n  a -b 'c\\'\n      d\n\n.e\n\nf");
        assert_eq!(
            roff,
            ".SH EXAMPLES\n.nf\n\\&a \\-b \\(aqc\\e\\(aq\n\\&    d\n.fi\n.SH NOTES\n\\&.e\n.PP\n\\&f\n"
        );
    }
}
