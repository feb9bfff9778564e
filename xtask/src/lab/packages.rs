//! Debian packages by name: which versions there are, fetching them, unpacking them. Nothing is installed, and no
//! privilege is needed, also for another suite than the host's.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::cache::Cache;
use super::host;
use super::progress::Step;

/// Where packages of another suite come from, and who signs them.
const MIRROR: &str = "http://deb.debian.org/debian";
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// For how long the lists of another suite are as good as new.
const LISTS_LAST: Duration = Duration::from_secs(24 * 60 * 60);

/// Packages of certain versions, as the names of their files.
pub type Files = Vec<String>;

/// Answers of apt, kept until its lists change: asking takes about a second, which is as long as a scenario.
#[derive(Default, Deserialize, Serialize)]
struct Answers {
    lists: u64,
    files: BTreeMap<String, Files>,
}

/// A set of apt's lists.
pub struct Source {
    /// None is the host's own.
    apart: Option<Apart>,
}

/// A suite whose lists are kept in the cache, where nothing of the host's apt is touched.
struct Apart {
    suite: String,
    directory: PathBuf,
}

impl Source {
    /// What the host itself installs from.
    pub fn host() -> Source {
        Source { apart: None }
    }

    /// Another suite of Debian's, such as `bullseye`; its lists are fetched if they are not there, or old.
    pub fn suite(cache: &Cache, suite: &str) -> Result<Source> {
        let directory = cache.directory.join("apt").join(suite);
        let source = Source { apart: Some(Apart { suite: suite.to_owned(), directory }) };
        source.refresh(cache)?;
        Ok(source)
    }

    fn refresh(&self, cache: &Cache) -> Result<()> {
        let Some(Apart { suite, directory }) = &self.apart else { return Ok(()) };
        let is_fresh = || {
            let changed = fs::metadata(directory.join("fetched")).and_then(|data| data.modified());
            changed.is_ok_and(|at| at.elapsed().is_ok_and(|age| age < LISTS_LAST))
        };
        if is_fresh() {
            return Ok(());
        }
        let _lock = cache.lock()?;
        if is_fresh() {
            return Ok(());
        }
        for part in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(directory.join(part))?;
        }
        let line = format!("deb [signed-by={KEYRING}] {MIRROR} {suite} main\n");
        fs::write(directory.join("sources.list"), line)?;
        let _step = Step::long(format!("fetching the lists of Debian's {suite}"));
        let every = ["-q", "-o", "APT::Update::Error-Mode=any", "update"];
        host::output(self.command("apt-get").args(every))
            .with_context(|| format!("apt does not fetch {suite} from {MIRROR}"))?;
        Ok(fs::write(directory.join("fetched"), suite)?)
    }

    /// apt's lists: when they change, versions may.
    fn lists(&self) -> PathBuf {
        match &self.apart {
            None => PathBuf::from("/var/lib/apt/lists"),
            Some(apart) => apart.directory.join("fetched"),
        }
    }

    fn answers(&self, cache: &Cache) -> PathBuf {
        match &self.apart {
            None => cache.directory.join("versions.json"),
            Some(apart) => apart.directory.join("versions.json"),
        }
    }

    fn command(&self, program: &str) -> Command {
        let mut command = host::command(program);
        // Root's apt would warn that its helper user cannot write here.
        command.args(["-o", "APT::Sandbox::User=root"]);
        if let Some(Apart { directory, .. }) = &self.apart {
            let at = |name: &str, path: &str| format!("{name}={}", directory.join(path).display());
            let options = [
                at("Dir::Etc::sourcelist", "sources.list"),
                "Dir::Etc::sourceparts=/dev/null".to_owned(),
                at("Dir::State::lists", "lists"),
                at("Dir::Cache", "cache"),
                // Names and indices alone are wanted.
                "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
                "Acquire::Languages=none".to_owned(),
            ];
            for option in options {
                command.args(["-o", &option]);
            }
        }
        command
    }

    /// The newest version of each package.
    pub fn resolve(&self, cache: &Cache, packages: &[String]) -> Result<Files> {
        self.answer(cache, packages.join(" "), || self.file_names(packages))
    }

    /// The newest versions of packages, and of the libraries that they depend on.
    pub fn resolve_with_libraries(&self, cache: &Cache, packages: &[String]) -> Result<Files> {
        self.answer(cache, format!("{} and libraries", packages.join(" ")), || {
            let mut all: BTreeSet<String> = packages.iter().cloned().collect();
            let options =
                ["depends", "--recurse", "--no-recommends", "--no-suggests", "--no-enhances"];
            let relations = ["--no-conflicts", "--no-breaks", "--no-replaces"];
            let mut command = self.command("apt-cache");
            let text = apt(command.args(options).args(relations).args(packages), packages)?;
            // Names stand at the start of a line, relations are indented.
            let is_library = |name: &str| {
                let library = name.starts_with("lib") || name.starts_with("zlib");
                library && !name.ends_with("-perl") && !name.starts_with("libperl")
            };
            all.extend(
                text.lines().filter(|line| is_library(line) && !line.contains(':')).map(Into::into),
            );
            self.file_names(&all.into_iter().collect::<Vec<_>>())
        })
    }

    /// The stock kernel that a package such as `linux-image-amd64` stands for. From Linux 7 on Debian has its image and
    /// its modules in packages of their own.
    pub fn resolve_kernel(&self, cache: &Cache, package: &str) -> Result<Files> {
        self.answer(cache, format!("{package} as a kernel"), || {
            let image = self.depends(package, &["linux-image-"])?.into_iter().next();
            let image = image.unwrap_or_else(|| package.to_owned());
            let mut all =
                self.depends(&image, &["linux-base-", "linux-binary-", "linux-modules-"])?;
            all.push(image);
            self.file_names(&all)
        })
    }

    /// The packages that one depends on, of those whose names begin so.
    fn depends(&self, package: &str, prefixes: &[&str]) -> Result<Vec<String>> {
        let mut command = self.command("apt-cache");
        let text = apt(command.args(["depends", package]), &[package.to_owned()])?;
        let depends = text.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
        let named = depends.filter(|name| prefixes.iter().any(|prefix| name.starts_with(prefix)));
        Ok(named.map(Into::into).collect())
    }

    /// Fetches what is not there yet, and returns the paths.
    pub fn fetch(&self, cache: &Cache, files: &Files) -> Result<Vec<PathBuf>> {
        let directory = cache.directory.join("packages");
        fs::create_dir_all(&directory)?;
        let missing: Vec<&String> =
            files.iter().filter(|file| !directory.join(file).exists()).collect();
        if !missing.is_empty() {
            let _step = Step::long(format!("fetching {} Debian packages", missing.len()));
            let wanted: Vec<String> = missing.iter().map(|file| name_and_version(file)).collect();
            let mut command = self.command("apt-get");
            let command = command.args(["-q", "download"]).args(&wanted).current_dir(&directory);
            apt(command, &wanted)?;
        }
        let paths: Vec<PathBuf> = files.iter().map(|file| directory.join(file)).collect();
        for path in &paths {
            ensure!(path.exists(), "apt-get download did not make {}", path.display());
        }
        Ok(paths)
    }

    fn answer(
        &self,
        cache: &Cache,
        question: String,
        ask: impl FnOnce() -> Result<Files>,
    ) -> Result<Files> {
        let (path, lists) = (self.answers(cache), self.lists());
        let changed = fs::metadata(&lists).and_then(|data| data.modified()).with_context(|| {
            format!("{} is not there: the lab needs Debian's apt", lists.display())
        })?;
        let lists = changed.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
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
    fn file_names(&self, packages: &[String]) -> Result<Files> {
        let mut command = self.command("apt-get");
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
}

/// Unpacks a package into a directory.
pub fn unpack(package: &Path, directory: &Path) -> Result<()> {
    host::output(host::command("dpkg-deb").arg("-x").arg(package).arg(directory)).map(drop)
}

fn apt(command: &mut Command, packages: &[String]) -> Result<String> {
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
