//! Which users' VQPs may be of the high class: `[qos] high` and `high_by_default`.

use elver_core::Class;
use nix::unistd::{Group, User};

use super::{ConfigError, QosConfig};

/// Priorities by user, with names looked up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Classes {
    high: Members,
    high_by_default: Members,
}

/// Some users and groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Members {
    everybody: bool,
    uids: Vec<u32>,
    gids: Vec<u32>,
}

impl Classes {
    /// Looks names up, once: who joins a group later is not in it.
    pub(super) fn of(config: &QosConfig) -> Result<Classes, ConfigError> {
        Ok(Classes {
            high: Members::of("qos.high", &config.high)?,
            high_by_default: Members::of("qos.high_by_default", &config.high_by_default)?,
        })
    }

    /// The class of a VQP of a user's whose process asks for `asked`; none if it may not have it.
    /// A user who is none of the host's is among everybody alone. Who is `trusted` could take the node down anyway, and may be of either class.
    pub(crate) fn class(
        &self,
        user: Option<(u32, u32)>,
        trusted: bool,
        asked: Option<Class>,
    ) -> Option<Class> {
        let has =
            |members: &Members| user.map_or(members.everybody, |(uid, gid)| members.have(uid, gid));
        let by_default = has(&self.high_by_default);
        match asked {
            Some(Class::High) if trusted || by_default || has(&self.high) => Some(Class::High),
            Some(Class::High) => None,
            Some(Class::Low) => Some(Class::Low),
            None if by_default => Some(Class::High),
            None => Some(Class::Low),
        }
    }
}

impl Members {
    fn of(option: &'static str, texts: &[String]) -> Result<Members, ConfigError> {
        let mut members = Members::default();
        for text in texts {
            let why = |why: String| ConfigError::Value { option, value: format!("{text:?}"), why };
            match text.strip_prefix('@') {
                None if text == "*" => members.everybody = true,
                None => members.uids.push(user(text).map_err(why)?),
                Some(group) => members.add_group(group).map_err(why)?,
            }
        }
        Ok(members)
    }

    fn add_group(&mut self, name: &str) -> Result<(), String> {
        if let Ok(gid) = name.parse() {
            self.gids.push(gid);
            return Ok(());
        }
        let found = Group::from_name(name).map_err(|errno| format!("looking it up: {errno}"))?;
        let group = found.ok_or("there is no such group")?;
        self.gids.push(group.gid.as_raw());
        // Whose first group is another: the socket tells of the first one alone.
        for member in group.mem {
            // A group may name users who are gone.
            self.uids.extend(user(&member).ok());
        }
        Ok(())
    }

    fn have(&self, uid: u32, gid: u32) -> bool {
        self.everybody || self.uids.contains(&uid) || self.gids.contains(&gid)
    }
}

fn user(name: &str) -> Result<u32, String> {
    if let Ok(uid) = name.parse() {
        return Ok(uid);
    }
    let found = User::from_name(name).map_err(|errno| format!("looking it up: {errno}"))?;
    found.map(|user| user.uid.as_raw()).ok_or("there is no such user".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classes(high: &[&str], by_default: &[&str]) -> Result<Classes, ConfigError> {
        let texts = |texts: &[&str]| texts.iter().map(|text| text.to_string()).collect();
        let (high, high_by_default) = (texts(high), texts(by_default));
        Classes::of(&QosConfig { high, high_by_default, ..QosConfig::default() })
    }

    const ASKED: [Option<Class>; 3] = [None, Some(Class::Low), Some(Class::High)];

    fn of(classes: &Classes, uid: u32, gid: u32) -> [Option<Class>; 3] {
        ASKED.map(|asked| classes.class(Some((uid, gid)), false, asked))
    }

    const LOW_ALONE: [Option<Class>; 3] = [Some(Class::Low), Some(Class::Low), None];
    const EITHER: [Option<Class>; 3] = [Some(Class::Low), Some(Class::Low), Some(Class::High)];
    const HIGH_FIRST: [Option<Class>; 3] = [Some(Class::High), Some(Class::Low), Some(Class::High)];

    /// A claim is worth nothing: the file says who is of the high class.
    #[test]
    fn nobody_is_of_the_high_class_by_saying_so() {
        let none = Classes::default();
        assert_eq!(of(&none, 1_000, 1_000), LOW_ALONE);
        assert_eq!(none.class(Some((1_000, 1_000)), true, Some(Class::High)), Some(Class::High));
    }

    #[test]
    fn users_and_groups_have_the_class_that_the_file_gives_them() {
        let some = classes(&["1000", "@2000"], &["1001", "@2001"]).unwrap();
        assert_eq!(of(&some, 1_000, 7), EITHER);
        assert_eq!(of(&some, 7, 2_000), EITHER);
        assert_eq!(of(&some, 1_001, 7), HIGH_FIRST);
        assert_eq!(of(&some, 7, 2_001), HIGH_FIRST);
        assert_eq!(of(&some, 2_000, 1_000), LOW_ALONE, "users and groups are not mixed up");
        assert_eq!(of(&classes(&["*"], &[]).unwrap(), 9, 9), EITHER);
    }

    #[test]
    fn names_are_looked_up_and_those_that_are_not_there_are_named() {
        let root = classes(&["root"], &["@root"]).unwrap();
        assert_eq!(root, classes(&["0"], &["@0"]).unwrap());
        for (high, why) in
            [("no such user, I hope", "no such user"), ("@no-group", "no such group")]
        {
            let error = classes(&[high], &[]).unwrap_err().to_string();
            assert!(error.contains("qos.high") && error.contains(why), "{error}");
        }
    }
}
