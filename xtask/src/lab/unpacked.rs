//! Programs of a suite of Debian's in a directory of their own, with the libraries that they load: for who runs them on
//! the host, and installs nothing.

use std::path::PathBuf;

use anyhow::Result;

use super::cache::Cache;
use super::packages::{self, Source};
use super::progress::Step;

/// The directory with what packages of a suite have, and the libraries that they depend on: fetched and unpacked if it is
/// not in the lab's cache.
pub fn unpacked(suite: &str, packages: &[&str]) -> Result<PathBuf> {
    let cache = Cache::open()?;
    let source = Source::suite(&cache, suite)?;
    let packages: Vec<String> = packages.iter().map(|name| (*name).to_owned()).collect();
    let files = source.resolve_with_libraries(&cache, &packages)?;
    cache.entry(&format!("unpacked-{suite}"), &[&files.join(" ")], |entry| {
        let paths = source.fetch(&cache, &files)?;
        let _step = Step::long(format!("unpacking programs of Debian's {suite}"));
        paths.iter().try_for_each(|path| packages::unpack(path, entry))
    })
}
