use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

/// The environment variable that says where the daemon's socket is.
pub const SOCKET_VARIABLE: &str = "ELVER_SOCKET";

/// Places where a daemon may listen, the first one preferred.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths(pub Vec<PathBuf>);

impl Paths {
    /// Where a daemon of the host or of this user listens.
    pub(crate) fn default_ones() -> Paths {
        let uid = rustix::process::geteuid().as_raw();
        Paths::of(uid, std::env::var_os(SOCKET_VARIABLE), std::env::var_os("XDG_RUNTIME_DIR"))
    }

    fn of(uid: u32, named: Option<OsString>, runtime: Option<OsString>) -> Paths {
        if let Some(named) = named.filter(|named| !named.is_empty()) {
            return Paths(vec![PathBuf::from(named)]);
        }
        let mut paths = vec![PathBuf::from("/run/elver/elverd.sock")];
        if uid != 0 {
            paths.push(match runtime.map(PathBuf::from) {
                Some(base) if base.is_absolute() => base.join("elver/elverd.sock"),
                _ => PathBuf::from(format!("/tmp/elver-{uid}/elverd.sock")),
            });
        }
        Paths(paths)
    }
}

impl fmt::Display for Paths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, path) in self.0.iter().enumerate() {
            let or = if index > 0 { " or " } else { "" };
            write!(f, "{or}{}", path.display())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(uid: u32, named: &str, runtime: &str) -> String {
        Paths::of(uid, Some(named.into()), Some(runtime.into())).to_string()
    }

    #[test]
    fn the_named_one_comes_alone_else_the_host_s_then_the_user_s() {
        assert_eq!(paths(0, "/a/b", "/run/user/0"), "/a/b");
        assert_eq!(paths(0, "", "/run/user/0"), "/run/elver/elverd.sock");
        let both = "/run/elver/elverd.sock or /run/user/7/elver/elverd.sock";
        assert_eq!(paths(7, "", "/run/user/7"), both);
        assert_eq!(paths(7, "", ""), "/run/elver/elverd.sock or /tmp/elver-7/elverd.sock");
    }
}
