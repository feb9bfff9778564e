//! Where names of a module's come from that it does not define itself: `pub use a::B` makes `B` one of its
//! names, and who imports that imports from `a`.

use std::collections::BTreeMap;

use anyhow::Result;
use proc_macro2::TokenTree;

use super::modules::{Modules, Name, base, tokens};

/// By a module and a name of it, the module that it comes from and its name there.
#[derive(Default)]
pub(super) struct Names(BTreeMap<(Name, String), (Name, String)>);

impl Names {
    /// All names that modules pass on.
    pub(super) fn of(modules: &Modules, sources: &BTreeMap<Name, String>) -> Result<Names> {
        let mut names = Names::default();
        for module in modules.values().filter(|module| !module.inline) {
            let Some(source) = sources.get(&module.name) else { continue };
            let tokens: Vec<TokenTree> = tokens(source, &module.file)?.into_iter().collect();
            for at in 0..tokens.len() {
                if is_passed_on(&tokens, at) {
                    let end = tokens[at..].iter().position(|token| is(token, ';'));
                    let path = &tokens[at + 1..at + end.unwrap_or(1)];
                    names.take(path, None, &module.name, modules);
                }
            }
        }
        Ok(names)
    }

    /// The module that a name of a module's is defined in, as far as it can be told.
    pub(super) fn home(&self, module: &Name, name: &str) -> Name {
        let (mut module, mut name) = (module.clone(), name.to_string());
        // Rust has no circles here; a path that was misread may have.
        for _ in 0..16 {
            match self.0.get(&(module.clone(), name.clone())) {
                Some((from, its)) => (module, name) = (from.clone(), its.clone()),
                None => break,
            }
        }
        module
    }

    /// Takes the names of a `use` in, from a path's place on.
    fn take(&mut self, path: &[TokenTree], from: Option<Name>, here: &Name, modules: &Modules) {
        let mut from = from;
        let mut at = 0;
        while let Some(token) = path.get(at) {
            match token {
                TokenTree::Ident(word) if path.get(at + 1).is_some_and(|next| is(next, ':')) => {
                    let word = word.to_string();
                    let next = match &from {
                        None => base(&word, here, modules),
                        Some(from) if word == "super" => {
                            from.len().checked_sub(1).map(|above| from[..above].to_vec())
                        }
                        Some(from) => {
                            let child = [from.as_slice(), &[word]].concat();
                            modules.contains_key(&child).then_some(child)
                        }
                    };
                    // Of another crate, or an enum's.
                    let Some(next) = next else { return };
                    from = Some(next);
                    at += 3;
                }
                TokenTree::Ident(word) => {
                    let its = word.to_string();
                    let new = match (path.get(at + 1), path.get(at + 2)) {
                        (Some(TokenTree::Ident(word)), Some(new)) if word == "as" => {
                            new.to_string()
                        }
                        _ => its.clone(),
                    };
                    if let Some(from) = from {
                        self.0.insert((here.clone(), new), (from, its));
                    }
                    return;
                }
                TokenTree::Group(group) => {
                    let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                    for branch in inner.split(|token| is(token, ',')) {
                        self.take(branch, from.clone(), here, modules);
                    }
                    return;
                }
                _ => return,
            }
        }
    }
}

/// Whether a `use` stands there that others see.
fn is_passed_on(tokens: &[TokenTree], at: usize) -> bool {
    let word = |at: Option<usize>, wanted: &str| matches!(at.and_then(|at| tokens.get(at)), Some(TokenTree::Ident(word)) if word == wanted);
    let group = matches!(at.checked_sub(1).map(|at| &tokens[at]), Some(TokenTree::Group(_)));
    word(Some(at), "use")
        && (word(at.checked_sub(1), "pub") || group && word(at.checked_sub(2), "pub"))
}

fn is(token: &TokenTree, wanted: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == wanted)
}
