//! What the daemon prints about itself: its manual page, completions for shells.

use std::io::{ErrorKind, Write, stdout};

use clap::CommandFactory;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use elver_node::config::DEFAULT_FILE;

use crate::arguments::{Arguments, CONFIG_FILE, Print};

/// Prints it.
pub(crate) fn run(what: &Print) -> std::io::Result<()> {
    let mut text = Vec::new();
    match what {
        Print::Man => page(&mut text)?,
        Print::Completions { shell } => {
            clap_complete::generate(*shell, &mut Arguments::command(), "elverd", &mut text);
        }
    }
    print(&text)
}

/// Writes to standard output. Whoever reads it may have enough.
pub(crate) fn print(text: &[u8]) -> std::io::Result<()> {
    let mut out = stdout().lock();
    match out.write_all(text).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

fn page(text: &mut Vec<u8>) -> std::io::Result<()> {
    let command = Arguments::command().disable_help_subcommand(true);
    // They have no pages of their own.
    let command = command.mut_subcommands(|print| print.hide(true));
    let man = Man::new(command).section("8").manual("Elver");
    man.render_title(text)?;
    man.render_name_section(text)?;
    man.render_synopsis_section(text)?;
    man.render_description_section(text)?;
    man.render_options_section(text)?;
    let mut more = Roff::new();
    more.control("SH", ["COMMANDS"]);
    for print in Arguments::command().get_subcommands() {
        let about = print.get_about().map(ToString::to_string).unwrap_or_default();
        more.control("TP", []);
        more.text([bold(print.get_name())]).text([roman(about)]);
    }
    more.control("SH", ["CONFIGURATION"]);
    more.text([
        roman("Read from "),
        bold(CONFIG_FILE),
        roman(" if no other file is named. All options, with their defaults:"),
    ]);
    more.control("PP", []).control("nf", []).control("RS", ["2"]);
    more.text([roman(DEFAULT_FILE)]);
    more.control("RE", []).control("fi", []);
    more.control("SH", ["SEE ALSO"]);
    more.text([bold("elver"), roman("(1), "), bold("elver-status"), roman("(1)")]);
    more.to_writer(text)?;
    man.render_version_section(text)
}
