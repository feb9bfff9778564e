//! `lab/lab.toml`: the kernels, and what guests are made of.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    pub engines: Vec<Engine>,
    /// Debian packages that the guests' programs come from.
    pub packages: Vec<String>,
    /// Programs that guests have beside busybox.
    pub programs: Vec<String>,
    /// Providers of libibverbs.
    pub providers: Vec<String>,
    /// Modules of a stock kernel.
    pub modules: Vec<String>,
}

/// A kernel, and how it runs.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Engine {
    pub name: String,
    pub kind: Kind,
    pub package: String,
    /// The suite of Debian's that a stock kernel's package is of, if not of the host's own.
    pub suite: Option<String>,
    #[serde(default)]
    pub patches: Vec<String>,
    /// Of the modules below, those that this kernel does not have as such: it has them built in, or does without.
    #[serde(default)]
    pub without: Vec<String>,
    /// The types of `rdma link add` that its kernel knows.
    pub rdma: Vec<String>,
    /// What a scenario's time-out is multiplied by.
    pub slowness: u32,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// User Mode Linux, built from a Debian source package.
    Uml,
    /// A stock Debian kernel, emulated.
    Qemu,
}

impl Kind {
    /// The guest's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Uml => "uml",
            Kind::Qemu => "qemu",
        }
    }
}

impl Engine {
    /// The RDMA link types that a scenario wants, if the kernel has them; "all" is all it has.
    pub fn rdma(&self, wanted: &[String]) -> Result<Vec<String>> {
        if wanted == ["all"] {
            return Ok(self.rdma.clone());
        }
        for link in wanted {
            ensure!(
                self.rdma.contains(link),
                "engine {:?} has no {link}, only {}; see lab/lab.toml",
                self.name,
                self.rdma.join(", ")
            );
        }
        Ok(wanted.to_vec())
    }
}

/// The directory `lab` of this source tree.
pub fn directory() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask).join("lab")
}

impl Config {
    pub fn read() -> Result<Config> {
        let path = directory().join("lab.toml");
        let text = super::host::read(&path)?;
        let config: Config =
            toml::from_str(&text).with_context(|| format!("cannot read {}", path.display()))?;
        for engine in &config.engines {
            ensure!(
                engine.slowness > 0 && engine.name != "all",
                "{}: engine {:?} needs a slowness of 1 or more and a name other than \"all\"",
                path.display(),
                engine.name
            );
            ensure!(
                engine.suite.is_none() || engine.kind == Kind::Qemu,
                "{}: engine {:?}: only a stock kernel may be of another suite",
                path.display(),
                engine.name
            );
        }
        Ok(config)
    }

    /// The engines that `--engine NAME` names; "all" names all.
    pub fn engines(&self, name: &str) -> Result<Vec<&Engine>> {
        if name == "all" {
            return Ok(self.engines.iter().collect());
        }
        let Some(engine) = self.engines.iter().find(|engine| engine.name == name) else {
            let names: Vec<&str> = self.engines.iter().map(|engine| engine.name.as_str()).collect();
            bail!("no engine {name:?} in lab/lab.toml; there are: {}, all", names.join(", "));
        };
        Ok(vec![engine])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checked_in_table_is_valid() {
        let config = Config::read().unwrap();
        assert_eq!(config.engines("all").unwrap().len(), config.engines.len());
        assert_eq!(config.engines("uml").unwrap()[0].kind, Kind::Uml);
        assert!(config.engines("vax").err().unwrap().to_string().contains("uml"));
    }
}
