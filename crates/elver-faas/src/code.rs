//! Whether a function's code is where its configuration says, whoever else there is on the host.
//!
//! The runtime mounts it as root, whose way is barred by no directory: somebody who can change a part of the path could put a link
//! there, or another directory, and have the container see what lies behind directories that are closed to its owner. No descriptor
//! helps, since a runtime in a mount namespace of its own mounts nothing of another one's. So that nobody but root and the
//! orchestrator's user may be able to change a part of the path. What is in the directory at its end is its owner's affair.
//!
//! In a user namespace the host's root is shown as the overflow user, as all are whom the namespace does not have. That one is
//! trusted there, since nothing else would be: who of them it is cannot be told, and the runtime gets at no more there than the
//! namespace's owner does.

use std::ffi::OsString;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// Most links on a path, as the kernel has it.
const LINKS_MAX: usize = 40;

/// Others than a file's owner may write it.
const OTHERS_WRITE: u32 = 0o022;

/// In a directory with this, only their owners remove and rename files, and its own.
const STICKY: u32 = 0o1000;

/// Why code is not mounted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CodeError {
    /// Something of its path cannot be looked at.
    #[error("{}: {error}", .at.display())]
    Missing {
        /// The part of the path.
        at: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// It ends in no directory.
    #[error("{} is no directory", .0.display())]
    NoDirectory(PathBuf),
    /// There are more links on the way than the kernel would follow.
    #[error("there are more than {LINKS_MAX} links on the way")]
    Links,
    /// Somebody can put something else there.
    #[error(
        "{} can be replaced by others than root, since {} has owner {uid} and mode {mode:o}; put the code below directories that \
         root alone can write, where the last one may be anybody's",
        .what.display(), .within.display()
    )]
    Replaceable {
        /// What.
        what: PathBuf,
        /// The directory that it is in.
        within: PathBuf,
        /// Whose that is.
        uid: u32,
        /// And what it allows.
        mode: u32,
    },
}

/// Who may be able to change a part of the path.
#[derive(Debug)]
pub(crate) struct Trusted(Vec<u32>);

impl Trusted {
    /// Root, this process's user, and whom its user namespace has in place of the host's root.
    pub(crate) fn here() -> Trusted {
        let own = rustix::process::geteuid().as_raw();
        let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
        let overflow = overflow(&read("/proc/self/uid_map"), &read("/proc/sys/kernel/overflowuid"));
        Trusted([0, own].into_iter().chain(overflow).collect())
    }
}

/// Whom those are shown as whom a user namespace does not have, if it lacks any.
fn overflow(map: &str, overflow: &str) -> Option<u32> {
    let whole = ["0", "0", "4294967295"];
    // Where there are no user namespaces, there is no map.
    let is_whole = map.is_empty() || map.split_whitespace().eq(whole);
    (!is_whole).then(|| overflow.trim().parse().ok()).flatten()
}

/// Checks that an absolute path leads to a directory, and that nobody but who is trusted can have it lead elsewhere.
///
/// # Errors
/// [`CodeError`].
pub(crate) fn check(path: &Path, trusted: &Trusted) -> Result<(), CodeError> {
    let names = |path: &Path| -> Vec<OsString> {
        // Those of "/" and "." lead nowhere else.
        let is_step =
            |part: &Component<'_>| matches!(part, Component::Normal(_) | Component::ParentDir);
        path.components().filter(is_step).map(|part| part.as_os_str().into()).rev().collect()
    };
    let (mut at, mut left, mut links) = (PathBuf::from("/"), names(path), 0);
    while let Some(name) = left.pop() {
        if name == ".." {
            at.pop();
            continue;
        }
        let within = look(&at)?;
        let next = at.join(&name);
        let entry = look(&next)?;
        if !stays(&within, &entry, trusted) {
            let (uid, mode) = (within.uid(), within.mode() & 0o7777);
            return Err(CodeError::Replaceable { what: next, within: at, uid, mode });
        }
        if !entry.is_symlink() {
            at = next;
            continue;
        }
        links += 1;
        if links > LINKS_MAX {
            return Err(CodeError::Links);
        }
        let to =
            std::fs::read_link(&next).map_err(|error| CodeError::Missing { at: next, error })?;
        if to.is_absolute() {
            at = PathBuf::from("/");
        }
        left.extend(names(&to));
    }
    match look(&at)?.is_dir() {
        true => Ok(()),
        false => Err(CodeError::NoDirectory(at)),
    }
}

/// What is at a path all of whose parts but the last are known to be no links.
fn look(at: &Path) -> Result<Metadata, CodeError> {
    std::fs::symlink_metadata(at).map_err(|error| CodeError::Missing { at: at.into(), error })
}

/// Whether nobody but who is trusted can replace an entry of a directory.
fn stays(within: &Metadata, entry: &Metadata, trusted: &Trusted) -> bool {
    let is_trusted = |of: &Metadata| trusted.0.contains(&of.uid());
    // A link that is root's may have been brought there by somebody in whose directory it was.
    let is_kept = within.mode() & STICKY != 0 && is_trusted(entry) && !entry.is_symlink();
    is_trusted(within) && (within.mode() & OTHERS_WRITE == 0 || is_kept)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    #[test]
    fn what_others_can_replace_is_no_code() {
        let own = rustix::process::geteuid().as_raw();
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        for directory in ["fixed/code", "open/code", "sticky/code"] {
            std::fs::create_dir_all(at(directory)).unwrap();
        }
        std::fs::write(at("fixed/file"), "").unwrap();
        symlink("../open", at("fixed/open")).unwrap();
        symlink("code/../../fixed/code", at("fixed/link")).unwrap();
        symlink("loop", at("fixed/loop")).unwrap();
        // Whose the code itself is, and who may write there, is all the same.
        for (name, mode) in [("open", 0o775), ("sticky", 0o1777), ("fixed/code", 0o777)] {
            std::fs::set_permissions(at(name), Permissions::from_mode(mode)).unwrap();
        }
        let check = |name: &str| check(&at(name), &Trusted(vec![0, own]));
        for good in ["fixed/code", "fixed/link", "sticky/code", "fixed/../fixed/code", "open"] {
            check(good).unwrap_or_else(|error| panic!("{good}: {error}"));
        }
        for replaceable in ["open/code", "fixed/open/code"] {
            let refused = check(replaceable).unwrap_err();
            let CodeError::Replaceable { within, mode, .. } = &refused else { panic!("{refused}") };
            assert_eq!((within, *mode), (&at("open"), 0o775));
        }
        assert!(matches!(check("fixed/file"), Err(CodeError::NoDirectory(_))));
        assert!(matches!(check("fixed/loop"), Err(CodeError::Links)));
        assert!(matches!(check("fixed/none"), Err(CodeError::Missing { .. })));
        if own == 0 {
            chown(at("fixed/code"), Some(61_082), Some(61_082)).unwrap();
            check("fixed/code").unwrap();
            // In a sticky directory others' entries are theirs to replace, and in theirs everything is.
            for theirs in ["sticky/code", "fixed"] {
                chown(at(theirs), Some(61_082), Some(61_082)).unwrap();
            }
            for replaceable in ["sticky/code", "fixed/code"] {
                assert!(matches!(check(replaceable), Err(CodeError::Replaceable { .. })));
            }
        }
    }

    /// The host's tree has it as the owner of `/` there, and no function could be mounted.
    #[test]
    fn who_stands_for_the_hosts_root_in_a_user_namespace_is_trusted() {
        let whole = "         0          0 4294967295\n";
        for (map, trusted) in [
            (whole, None),
            ("", None),
            ("         0       1000          1\n", Some(65_534)),
            ("0 1000 1\n1 100000 65536\n", Some(65_534)),
        ] {
            assert_eq!(overflow(map, "65534\n"), trusted, "{map:?}");
        }
        let own = rustix::process::geteuid().as_raw();
        if own == 0 {
            let place = tempfile::tempdir().unwrap();
            let code = place.path().join("others/code");
            std::fs::create_dir_all(&code).unwrap();
            chown(place.path().join("others"), Some(61_082), Some(61_082)).unwrap();
            assert!(check(&code, &Trusted(vec![0])).is_err());
            check(&code, &Trusted(vec![0, 61_082])).unwrap();
        }
    }
}
