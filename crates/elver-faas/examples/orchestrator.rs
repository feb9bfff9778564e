//! A platform of one's own: `orchestrator CONFIG INIT` serves the functions of a configuration, with
//! `elver-init` at INIT, until it is interrupted.

use std::error::Error;
use std::path::Path;

use elver_faas::state::Programs;
use elver_faas::{Config, orchestrator};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [config, init] = &arguments[..] else {
        return Err("usage: orchestrator CONFIG INIT".into());
    };
    let config = Config::load(Path::new(config))?;
    let module = config.platform.module.clone();
    let programs = Programs { init: Path::new(init), module: module.as_deref() };
    orchestrator::serve(config, &programs, |socket| println!("{}", socket.display()))?;
    Ok(())
}
