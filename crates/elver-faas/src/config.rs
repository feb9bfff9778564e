//! What a platform's owner says of his functions, in TOML.
//!
//! ```
//! let config = elver_faas::Config::parse(
//!     r#"
//!     [owners.alice]
//!     uid = 60001
//!
//!     [functions.hello]
//!     owner = "alice"
//!     code = "/srv/hello"
//!     handler = "hello.handler"
//!     "#,
//! )
//! .unwrap();
//! assert_eq!(config.functions["hello"].timeout_s, 3);
//! ```

mod check;
mod error;
mod file;
mod sections;
#[cfg(test)]
mod tests;

pub(crate) use check::DESTINATIONS_MAX;
#[cfg(test)]
pub(crate) use check::{ENVIRONMENT_MAX, HANDLER_MAX, PROCESSES_MAX};
pub use error::ConfigError;
pub use sections::{Config, Connections, Function, Owner, Platform, RuntimeKind};
