//! Modules of a crate, and the files that they stand in. Tokens are looked at, so that neither comments
//! nor texts are taken for code.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// Names from the crate's root on.
pub(super) type Name = Vec<String>;

/// A module, and the file that it stands in.
pub(super) struct Module {
    pub(super) name: Name,
    pub(super) file: PathBuf,
    /// Whether it stands in its parent's file.
    pub(super) inline: bool,
}

pub(super) type Modules = BTreeMap<Name, Module>;

/// All modules of a crate.
pub(super) fn modules(root: &Path, read: &dyn Fn(&Path) -> Option<String>) -> Result<Modules> {
    let mut modules = Modules::new();
    // The file, its module, and where its children's files are.
    let below = root.parent().unwrap_or(Path::new("")).to_path_buf();
    let mut left = vec![(root.to_path_buf(), Name::new(), below)];
    while let Some((file, name, below)) = left.pop() {
        let source = read(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let tokens: Vec<TokenTree> = tokens(&source, &file)?.into_iter().collect();
        declared(&tokens, &name, &mut |child: Name, inline| {
            if inline {
                let module = Module { name: child.clone(), file: file.clone(), inline };
                modules.insert(child, module);
                return;
            }
            let at = child[name.len()..].iter().fold(below.clone(), |at, part| at.join(part));
            let plain = at.with_extension("rs");
            let own = if read(&plain).is_some() { plain } else { at.join("mod.rs") };
            left.push((own, child, at));
        });
        modules.insert(name.clone(), Module { name, file, inline: false });
    }
    Ok(modules)
}

pub(super) fn tokens(source: &str, file: &Path) -> Result<TokenStream> {
    source.parse().map_err(|error| anyhow!("{}: {error}", file.display()))
}

/// Calls `found` with every module that is declared, and whether its body stands here.
fn declared(tokens: &[TokenTree], name: &Name, found: &mut dyn FnMut(Name, bool)) {
    for window in tokens.windows(3) {
        let [TokenTree::Ident(word), TokenTree::Ident(child), end] = window else { continue };
        if word != "mod" {
            continue;
        }
        let child = [name.as_slice(), &[child.to_string()]].concat();
        match end {
            TokenTree::Punct(end) if end.as_char() == ';' => found(child, false),
            TokenTree::Group(body) if body.delimiter() == Delimiter::Brace => {
                found(child.clone(), true);
                declared(&body.stream().into_iter().collect::<Vec<_>>(), &child, found);
            }
            _ => {}
        }
    }
}

/// The module that the first word of a path stands for.
pub(super) fn base(word: &str, here: &Name, modules: &Modules) -> Option<Name> {
    match word {
        "crate" => Some(Name::new()),
        "self" => Some(here.clone()),
        "super" => Some(here[..here.len().checked_sub(1)?].to_vec()),
        child => {
            let child = [here.as_slice(), &[child.to_string()]].concat();
            modules.contains_key(&child).then_some(child)
        }
    }
}
