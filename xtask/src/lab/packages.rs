//! Debian packages by name: which versions there are, fetching them, unpacking them. Nothing is installed, and no
//! privilege is needed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::cache::Cache;
use super::host;
use super::progress::Step;

/// apt's lists: when they change, versions may.
const LISTS: &str = "/var/lib/apt/lists";

/// Packages of certain versions, as the names of their files.
pub type Files = Vec<String>;

/// Answers of apt, kept until its lists change: asking takes about a second, which is as long as a scenario.
#[derive(Default, Deserialize, Serialize)]
struct Answers {
    lists: u64,
    files: BTreeMap<String, Files>,
}

/// The newest version of each package.
pub fn resolve(cache: &Cache, packages: &[String]) -> Result<Files> {
    answer(cache, packages.join(" "), || file_names(packages))
}

/// The newest versions of packages, and of the libraries that they depend on.
pub fn resolve_with_libraries(cache: &Cache, packages: &[String]) -> Result<Files> {
    answer(cache, format!("{} and libraries", packages.join(" ")), || {
        let mut all: BTreeSet<String> = packages.iter().cloned().collect();
        let options = ["depends", "--recurse", "--no-recommends", "--no-suggests", "--no-enhances"];
        let relations = ["--no-conflicts", "--no-breaks", "--no-replaces"];
        let text =
            apt(host::command("apt-cache").args(options).args(relations).args(packages), packages)?;
        // Names stand at the start of a line, relations are indented.
        let is_library = |name: &str| {
            let library = name.starts_with("lib") || name.starts_with("zlib");
            library && !name.ends_with("-perl") && !name.starts_with("libperl")
        };
        all.extend(
            text.lines().filter(|line| is_library(line) && !line.contains(':')).map(Into::into),
        );
        file_names(&all.into_iter().collect::<Vec<_>>())
    })
}

/// The stock kernel that a package such as `linux-image-amd64` stands for.
pub fn resolve_kernel(cache: &Cache, package: &str) -> Result<Files> {
    answer(cache, format!("{package} as a kernel"), || {
        let named = [package.to_owned()];
        let text = apt(host::command("apt-cache").args(["depends", package]), &named)?;
        let stands_for = text
            .lines()
            .filter_map(|line| line.trim().strip_prefix("Depends: linux-image-"))
            .map(|rest| format!("linux-image-{rest}"))
            .next();
        file_names(&[stands_for.unwrap_or_else(|| package.to_owned())])
    })
}

/// Fetches what is not there yet, and returns the paths.
pub fn fetch(cache: &Cache, files: &Files) -> Result<Vec<PathBuf>> {
    let directory = cache.directory.join("packages");
    fs::create_dir_all(&directory)?;
    let missing: Vec<&String> =
        files.iter().filter(|file| !directory.join(file).exists()).collect();
    if !missing.is_empty() {
        let _step = Step::long(format!("fetching {} Debian packages", missing.len()));
        let wanted: Vec<String> = missing.iter().map(|file| name_and_version(file)).collect();
        apt(
            host::command("apt-get")
                // Root's apt would warn that its helper user cannot write here.
                .args(["-o", "APT::Sandbox::User=root", "-q", "download"])
                .args(&wanted)
                .current_dir(&directory),
            &wanted,
        )?;
    }
    let paths: Vec<PathBuf> = files.iter().map(|file| directory.join(file)).collect();
    for path in &paths {
        ensure!(path.exists(), "apt-get download did not make {}", path.display());
    }
    Ok(paths)
}

/// Unpacks a package into a directory.
pub fn unpack(package: &Path, directory: &Path) -> Result<()> {
    host::output(host::command("dpkg-deb").arg("-x").arg(package).arg(directory)).map(drop)
}

fn answer(cache: &Cache, question: String, ask: impl FnOnce() -> Result<Files>) -> Result<Files> {
    let path = cache.directory.join("versions.json");
    let lists = fs::metadata(LISTS)
        .and_then(|data| data.modified())
        .with_context(|| format!("{LISTS} is not there: the lab needs Debian's apt"))?;
    let lists = lists.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    // A file that cannot be read is as good as none: apt is asked again.
    let mut answers: Answers = fs::read(&path)
        .ok()
        .and_then(|text| serde_json::from_slice(&text).ok())
        .filter(|answers: &Answers| answers.lists == lists)
        .unwrap_or(Answers { lists, ..Answers::default() });
    if let Some(files) = answers.files.get(&question) {
        return Ok(files.clone());
    }
    host::need(host::PACKAGES)?;
    let files = ask()?;
    answers.files.insert(question, files.clone());
    let partial = path.with_extension(format!("{}", std::process::id()));
    fs::write(&partial, serde_json::to_string_pretty(&answers)?)?;
    fs::rename(&partial, &path)?;
    Ok(files)
}

/// The files that `apt-get download` would make.
fn file_names(packages: &[String]) -> Result<Files> {
    let mut command = host::command("apt-get");
    let text = apt(command.args(["download", "--print-uris"]).args(packages), packages)?;
    let files: Files =
        text.lines().filter_map(|line| line.split(' ').nth(1)).map(Into::into).collect();
    ensure!(
        files.len() >= packages.len(),
        "apt names {} files for the {} packages {packages:?}; try: apt-get update",
        files.len(),
        packages.len()
    );
    Ok(files)
}

fn apt(command: &mut std::process::Command, packages: &[String]) -> Result<String> {
    host::text(command).with_context(|| {
        format!(
            "apt does not give {}; the lists may be missing or old (apt-get update), or the package has another name in \
             this release (lab/lab.toml)",
            packages.join(" ")
        )
    })
}

/// `name=version` of `name_version_architecture.deb`, where a colon in the version is written %3a.
fn name_and_version(file: &str) -> String {
    let mut parts = file.split('_');
    let name = parts.next().unwrap_or_default();
    match parts.next() {
        Some(version) => format!("{name}={}", version.replace("%3a", ":")),
        None => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_name_tells_name_and_version() {
        assert_eq!(name_and_version("kmod_30+20221128-1_amd64.deb"), "kmod=30+20221128-1");
        assert_eq!(
            name_and_version("busybox-static_1%3a1.35.0-4_amd64.deb"),
            "busybox-static=1:1.35.0-4"
        );
    }
}
