//! The first process of an action's container under OpenWhisk.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;

const VERSION: &str = concat!("elver-action ", env!("CARGO_PKG_VERSION"));
const USAGE: &str = "\
elver-action: the first process of an action's container under OpenWhisk

Usage: elver-action [ADDRESS:PORT]

  ADDRESS:PORT   where the platform reaches it, by HTTP; by default port 8080 of all addresses
  -h, --help     print this
  -V, --version  print the version";

/// What it is asked for.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Serve(SocketAddr),
    Tell(&'static str),
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (code, what) = match asked(&arguments) {
        Ok(Asked::Serve(address)) => match elver_faas::action::serve(address) {
            Ok(()) => return ExitCode::SUCCESS,
            Err(error) => (1, format!("cannot serve {address}: {error}")),
        },
        Ok(Asked::Tell(text)) => match writeln!(std::io::stdout(), "{text}") {
            Ok(()) => return ExitCode::SUCCESS,
            Err(error) => (1, format!("cannot write the output: {error}")),
        },
        Err(what) => (2, what),
    };
    eprintln!("elver-action: {what}");
    ExitCode::from(code)
}

fn asked(arguments: &[&str]) -> Result<Asked, String> {
    match arguments {
        [] => Ok(Asked::Serve((Ipv4Addr::UNSPECIFIED, elver_faas::action::PORT).into())),
        ["-h" | "--help"] => Ok(Asked::Tell(USAGE)),
        ["-V" | "--version"] => Ok(Asked::Tell(VERSION)),
        [address] => address.parse().map(Asked::Serve).map_err(|_| {
            format!("{address:?} is no ADDRESS:PORT; give one such as 0.0.0.0:8080 or [::]:8080, or --help")
        }),
        _ => Err(format!("there are {} arguments; give one ADDRESS:PORT, or --help", arguments.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_address_is_told_with_what_to_give() {
        let port = elver_faas::action::PORT;
        assert_eq!(asked(&[]), Ok(Asked::Serve((Ipv4Addr::UNSPECIFIED, port).into())));
        assert_eq!(asked(&["127.0.0.1:9"]), Ok(Asked::Serve((Ipv4Addr::LOCALHOST, 9).into())));
        assert!(USAGE.contains(&format!("port {port}")));
        for (help, text) in
            [("-h", USAGE), ("--help", USAGE), ("-V", VERSION), ("--version", VERSION)]
        {
            assert_eq!(asked(&[help]), Ok(Asked::Tell(text)));
        }
        for wrong in ["nonsense", "--port", "127.0.0.1"] {
            let told = asked(&[wrong]).unwrap_err();
            assert!(told.contains(wrong) && told.contains("0.0.0.0:8080"), "{told}");
        }
        assert!(asked(&["a", "b"]).unwrap_err().contains("2 arguments"));
    }
}
