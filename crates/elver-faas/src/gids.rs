//! GIDs in what comes in: parsed once, so that one is itself in whichever spelling, and written in one.

use elver::Gid;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serializer};

/// The GID that a text is.
///
/// # Errors
/// What the text is instead, and how a GID is written.
pub(crate) fn parse(text: &str) -> Result<Gid, String> {
    text.parse().map_err(|how| format!("{text:?}, which is no GID: {how}"))
}

/// For `#[serde(with)]`: a list of texts.
pub(crate) fn serialize<'a, S, C>(gids: &'a C, to: S) -> Result<S::Ok, S::Error>
where
    S: Serializer,
    &'a C: IntoIterator<Item = &'a Gid>,
{
    to.collect_seq(gids.into_iter().map(Gid::to_string))
}

/// For `#[serde(with)]`: of a list of texts.
pub(crate) fn deserialize<'de, D, C>(from: D) -> Result<C, D::Error>
where
    D: Deserializer<'de>,
    C: FromIterator<Gid>,
{
    let parsed = Vec::<String>::deserialize(from)?.into_iter().map(|text| parse(&text));
    parsed.collect::<Result<C, String>>().map_err(|what| D::Error::custom(format!("has {what}")))
}

/// The same, with each once, in its order.
pub(crate) fn each_once<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Gid>, D::Error> {
    let mut gids: Vec<Gid> = Vec::new();
    for gid in deserialize::<D, Vec<Gid>>(from)? {
        if !gids.contains(&gid) {
            gids.push(gid);
        }
    }
    Ok(gids)
}
