//! Modules of a crate, and the paths that stand in their files. Tokens are looked at, so that neither
//! comments nor texts are taken for paths; what a macro makes is not seen.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::names::Names;

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

/// What paths are looked up in.
struct House<'a> {
    modules: &'a Modules,
    names: &'a Names,
}

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

/// The modules that a module's paths lead to.
pub(super) fn of(
    source: &str,
    module: &Module,
    modules: &Modules,
    names: &Names,
) -> Result<Vec<Name>> {
    let mut found = Vec::new();
    let house = House { modules, names };
    scan(tokens(source, &module.file)?, &module.name, &house, &mut found);
    Ok(found)
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

/// Collects where the paths of a module lead.
fn scan(tokens: TokenStream, here: &Name, house: &House<'_>, found: &mut Vec<Name>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at] {
            TokenTree::Group(group) => {
                let inner = match at.checked_sub(2).map(|begin| &tokens[begin..at]) {
                    Some([TokenTree::Ident(word), TokenTree::Ident(name)]) if word == "mod" => {
                        [here.as_slice(), &[name.to_string()]].concat()
                    }
                    _ => here.clone(),
                };
                scan(group.stream(), &inner, house, found);
                at += 1;
            }
            TokenTree::Ident(word) if begins_a_path(&tokens, at) => {
                match base(&word.to_string(), here, house.modules) {
                    Some(base) => at = follow(&tokens, at + 1, base, house, found),
                    // Of another crate, or of what was imported already.
                    None => at += 1,
                }
            }
            _ => at += 1,
        }
    }
}

/// Whether a path may begin there: no `a::`, `$` or `in` stands before it.
fn begins_a_path(tokens: &[TokenTree], at: usize) -> bool {
    match at.checked_sub(1).map(|before| &tokens[before]) {
        Some(TokenTree::Punct(punct)) => {
            !matches!(punct.as_char(), ':' | '$' | '.') || is_type(tokens, at)
        }
        Some(TokenTree::Ident(word)) => word != "in" && word != "mod" && word != "fn",
        _ => true,
    }
}

/// Whether the colon before is one of a type, and no path's.
fn is_type(tokens: &[TokenTree], at: usize) -> bool {
    let colon = |at: Option<usize>| matches!(at.map(|at| &tokens[at]), Some(TokenTree::Punct(p)) if p.as_char() == ':');
    colon(at.checked_sub(1)) && !colon(at.checked_sub(2))
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

/// Follows a path from behind a module's name on, through groups too; returns where it ends.
fn follow(
    tokens: &[TokenTree],
    mut at: usize,
    base: Name,
    house: &House<'_>,
    found: &mut Vec<Name>,
) -> usize {
    let mut base = base;
    let mut leads = false;
    while let (Some(TokenTree::Punct(a)), Some(TokenTree::Punct(b)), Some(next)) =
        (tokens.get(at), tokens.get(at + 1), tokens.get(at + 2))
        && (a.as_char(), b.as_char()) == (':', ':')
    {
        leads = true;
        at += 3;
        match next {
            TokenTree::Ident(word) if word == "super" => drop(base.pop()),
            TokenTree::Ident(word) => {
                let child = [base.as_slice(), &[word.to_string()]].concat();
                if !house.modules.contains_key(&child) {
                    // A name that the module passes on stands where it comes from.
                    base = house.names.home(&base, &word.to_string());
                    break;
                }
                base = child;
            }
            TokenTree::Group(group) => {
                branches(group.stream(), &base, house, found);
                return at;
            }
            _ => break,
        }
    }
    // A bare `self`, or a word that is a module's name too, leads nowhere.
    if leads {
        found.push(base);
    }
    at
}

/// The branches of a `use`, from a module on.
fn branches(group: TokenStream, base: &Name, house: &House<'_>, found: &mut Vec<Name>) {
    let tokens: Vec<TokenTree> = group.into_iter().collect();
    let comma = |token: &TokenTree| matches!(token, TokenTree::Punct(p) if p.as_char() == ',');
    // Behind the last comma stands nothing.
    for branch in tokens.split(comma).filter(|branch| !branch.is_empty()) {
        let Some(TokenTree::Ident(word)) = branch.first() else {
            // `*`
            found.push(base.clone());
            continue;
        };
        let child = [base.as_slice(), &[word.to_string()]].concat();
        if word == "self" {
            found.push(base.clone());
        } else if !house.modules.contains_key(&child) {
            found.push(house.names.home(base, &word.to_string()));
        } else if branch.len() == 1 {
            found.push(child);
        } else {
            follow(branch, 1, child, house, found);
        }
    }
}
