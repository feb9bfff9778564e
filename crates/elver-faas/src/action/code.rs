//! What `/init` brings, and what is made of it.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value};

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Brought {
    main: Option<String>,
    code: Option<String>,
    binary: bool,
    env: Option<Map<String, Value>>,
}

/// Our launcher of actions in Python, and what it imports.
const LAUNCHER: [(&str, &str); 4] = [
    ("action.py", include_str!("../../python/action.py")),
    ("_elver_assignments.py", include_str!("../../python/_elver_assignments.py")),
    ("elver_context.py", include_str!("../../python/elver_context.py")),
    ("_elver_strays.py", include_str!("../../python/_elver_strays.py")),
];

/// An action's code.
#[derive(Debug)]
pub(super) struct Code {
    bytes: Vec<u8>,
    /// Whether it came as text.
    is_text: bool,
    main: String,
    /// Variables of its environment.
    pub(super) environment: Vec<(String, String)>,
}

/// What is started.
#[derive(Debug)]
pub(super) enum Action {
    /// A program that speaks ActionLoop.
    Program(PathBuf),
    /// What our launcher makes something of: a module's text, or an archive.
    Python {
        /// That launcher.
        launcher: PathBuf,
        /// The file.
        file: PathBuf,
        /// The function in it.
        main: String,
    },
}

impl Code {
    /// Reads the body of `/init`. The error is what to answer.
    pub(super) fn parse(body: &[u8]) -> Result<Code, (StatusCode, String)> {
        let unreadable = |error: serde_json::Error| {
            (StatusCode::BAD_REQUEST, format!("Error unmarshaling request: {error}"))
        };
        // Objects alone: an array could be taken for one whose values are in order.
        let mut request: Map<String, Value> = serde_json::from_slice(body).map_err(unreadable)?;
        let value = request.remove("value").unwrap_or_default();
        let value: Option<Map<String, Value>> =
            serde_json::from_value(value).map_err(unreadable)?;
        let brought = Value::Object(value.unwrap_or_default());
        let Brought { main, code, binary, env } =
            serde_json::from_value(brought).map_err(unreadable)?;
        let Some(code) = code.filter(|code| !code.is_empty()) else {
            return Err((StatusCode::FORBIDDEN, "Missing main/no code to execute.".into()));
        };
        let bytes = match binary {
            false => code.into_bytes(),
            true => STANDARD.decode(code).map_err(|error| {
                (StatusCode::BAD_REQUEST, format!("cannot decode the request: {error}"))
            })?,
        };
        let main = main.filter(|main| !main.is_empty()).unwrap_or_else(|| "main".into());
        let mut environment = Vec::new();
        for (name, value) in env.unwrap_or_default() {
            let value = text(value);
            if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
                let what = format!("env has {name:?}, which cannot be a variable");
                return Err((StatusCode::BAD_REQUEST, what));
            }
            environment.push((name, value));
        }
        Ok(Code { bytes, is_text: !binary, main, environment })
    }

    /// Whether it is run as it is. The text of a module may say of itself that it is Python's.
    fn is_program(&self) -> bool {
        let first = self.bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let is_pythons = String::from_utf8_lossy(first).contains("python");
        self.bytes.starts_with(b"\x7fELF")
            || (first.starts_with(b"#!") && !(self.is_text && is_pythons))
    }

    /// Puts it into a directory of its own.
    pub(super) fn unpack(&self) -> io::Result<Action> {
        let directory = std::env::temp_dir().join(format!("action-{}", std::process::id()));
        match std::fs::remove_dir_all(&directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        std::fs::create_dir(&directory)?;
        let is_program = self.is_program();
        let file = directory.join(if is_program { "exec" } else { "action" });
        std::fs::write(&file, &self.bytes)?;
        if !is_program {
            let launchers = directory.join("launcher");
            std::fs::create_dir(&launchers)?;
            for (name, text) in LAUNCHER {
                std::fs::write(launchers.join(name), text)?;
            }
            let launcher = launchers.join(LAUNCHER[0].0);
            return Ok(Action::Python { launcher, file, main: self.main.clone() });
        }
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755))?;
        Ok(Action::Program(file))
    }
}

/// A variable's value: text as it is, all else as JSON.
pub(super) fn text(value: Value) -> String {
    match value {
        Value::String(text) => text,
        other => other.to_string(),
    }
}
