//! The paths that stand in the files of a crate; what a macro makes is not seen.

use anyhow::Result;
use proc_macro2::{TokenStream, TokenTree};

use super::modules::{Module, Modules, Name, base, tokens};
use super::names::Names;

/// What paths are looked up in.
struct House<'a> {
    modules: &'a Modules,
    names: &'a Names,
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
