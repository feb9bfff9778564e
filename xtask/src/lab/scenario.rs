//! `lab/scenarios/NAME/scenario.toml`: what runs, and how it is joined.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use super::config;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    #[serde(skip)]
    pub name: String,
    /// One line that says what it proves.
    pub about: String,
    /// Seconds from start to end, times the engine's slowness.
    pub timeout: u32,
    /// One or two.
    #[serde(default = "one")]
    pub guests: usize,
    #[serde(default)]
    pub link: Link,
    /// Whether what crosses the link is kept as a pcap file.
    #[serde(default)]
    pub capture: bool,
    /// RDMA link types that are up before the script runs: rxe0, siw0. "all" are all that the engine has.
    #[serde(default = "rxe")]
    pub rdma: Vec<String>,
    #[serde(default = "ethernet_mtu")]
    pub mtu: u32,
    #[serde(default = "memory")]
    pub memory_mb: u32,
    /// NUMA nodes that a guest's processors and memory are in, one or two. User Mode Linux knows of none.
    #[serde(default = "one")]
    pub numa_nodes: usize,
    /// Programs for /job/bin: a binary of this workspace, or a path (with a slash) under its root.
    #[serde(default)]
    pub binaries: Vec<String>,
    /// Tools of the host that it needs, and the Debian packages that have them.
    #[serde(default)]
    pub needs: BTreeMap<String, String>,
    /// A command that runs on the host before everything else.
    #[serde(default)]
    pub prepare: Vec<String>,
    pub host: Option<Host>,
    /// A command that runs on the host after everything else; its exit code counts.
    #[serde(default)]
    pub check: Vec<String>,
}

/// A program on the host that runs beside the guests.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    pub command: Vec<String>,
    #[serde(default)]
    pub until: Until,
    /// How it is given the link, where that carries frames.
    #[serde(default)]
    pub form: Form,
}

/// How the guests are joined to each other or to the host program.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Link {
    /// A dummy device.
    #[default]
    None,
    /// Guests are joined to each other.
    Guests,
    /// Guests and the host program exchange Ethernet frames.
    Frames,
    /// A tap device in a network namespace, where the host program has ordinary sockets.
    Tap,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Until {
    /// It ends by itself, with code 0.
    #[default]
    Exit,
    /// It is terminated when the guests' scripts have ended.
    Guests,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    #[default]
    Fd,
    Udp,
}

fn one() -> usize {
    1
}

fn rxe() -> Vec<String> {
    vec!["rxe".into()]
}

fn ethernet_mtu() -> u32 {
    1500
}

fn memory() -> u32 {
    512
}

impl Scenario {
    pub fn directory(&self) -> PathBuf {
        directory().join(&self.name)
    }

    pub fn read(name: &str) -> Result<Scenario> {
        let path = directory().join(name).join("scenario.toml");
        if !path.exists() {
            bail!("no scenario {name:?}; there are: {}", names()?.join(", "));
        }
        Self::parse(name, &super::host::read(&path)?)
            .with_context(|| format!("cannot read {}", path.display()))
    }

    fn parse(name: &str, text: &str) -> Result<Scenario> {
        let mut scenario: Scenario = toml::from_str(text)?;
        scenario.name = name.to_owned();
        ensure!((1..=2).contains(&scenario.guests), "guests = {}: 1 or 2", scenario.guests);
        ensure!(
            (1..=2).contains(&scenario.numa_nodes),
            "numa_nodes = {}: 1 or 2",
            scenario.numa_nodes
        );
        ensure!(scenario.timeout > 0, "timeout = 0: at least a second");
        ensure!(
            scenario.link != Link::Guests || scenario.guests == 2,
            "link = \"guests\" joins two guests, and there is guests = {}",
            scenario.guests
        );
        ensure!(
            scenario.link != Link::None || scenario.guests == 1 && !scenario.capture,
            "two guests or a capture need a link"
        );
        ensure!(
            scenario.link != Link::Tap || scenario.guests == 1,
            "link = \"tap\" joins one guest, and there is guests = {}",
            scenario.guests
        );
        ensure!(
            scenario.link != Link::Frames || scenario.host.is_some(),
            "link = \"frames\" needs [host]: a program at the other end"
        );
        Ok(scenario)
    }
}

/// The names of all scenarios, sorted.
pub fn names() -> Result<Vec<String>> {
    let directory = directory();
    let entries =
        fs::read_dir(&directory).with_context(|| format!("cannot read {}", directory.display()))?;
    let mut names: Vec<String> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.join("scenario.toml").exists())
        .filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
        .collect();
    names.sort();
    Ok(names)
}

fn directory() -> PathBuf {
    config::directory().join("scenarios")
}

/// Replaces `{name}` in the words of a command.
pub fn fill(words: &[String], values: &BTreeMap<String, String>) -> Result<Vec<String>> {
    words.iter().map(|word| fill_word(word, values)).collect()
}

fn fill_word(word: &str, values: &BTreeMap<String, String>) -> Result<String> {
    let mut filled = String::new();
    let mut rest = word;
    while let Some((before, after)) = rest.split_once('{') {
        let (name, after) =
            after.split_once('}').with_context(|| format!("{word:?} has a {{ without a }}"))?;
        let value = values.get(name).with_context(|| {
            let known: Vec<&str> = values.keys().map(String::as_str).collect();
            format!("{word:?} names {{{name}}}; known here are: {}", known.join(", "))
        })?;
        filled += before;
        filled += value;
        rest = after;
    }
    Ok(filled + rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_checked_in_scenario_is_valid_and_has_a_script() {
        for name in names().unwrap() {
            let scenario = Scenario::read(&name).unwrap_or_else(|error| panic!("{error:#}"));
            assert!(scenario.directory().join("guest.sh").exists(), "{name} has no guest.sh");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let error = |text| Scenario::parse("x", text).unwrap_err().to_string();
        assert!(error("about='a'\ntimeout=1\nguests=3").contains("guests = 3"));
        assert!(error("about='a'\ntimeout=1\nlink='guests'").contains("guests = 1"));
        assert!(error("about='a'\ntimeout=1\nlink='frames'").contains("[host]"));
        assert!(error("about='a'\ntimeout=1\nnuma_nodes=3").contains("numa_nodes = 3"));
        assert!(error("about='a'\ntimeout=1\ntypo=1").contains("typo"));
    }

    #[test]
    fn placeholders_are_filled() {
        let values = BTreeMap::from([("link".to_owned(), "fd:3".to_owned())]);
        let words = |text: &str| vec![text.to_owned()];
        assert_eq!(fill(&words("a={link},{link}!"), &values).unwrap(), ["a=fd:3,fd:3!"]);
        assert!(fill(&words("{what}"), &values).unwrap_err().to_string().contains("link"));
        assert!(fill(&words("{link"), &values).is_err());
    }
}
