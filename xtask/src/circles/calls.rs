//! Which files call methods of which, as far as that can be seen: a type whose methods stand in several
//! files, and calls of them on `self` and by `Self::`. What is called on another value has a type that only
//! the compiler knows.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::Result;
use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::modules::tokens;

/// The methods of a type in a file, and what they call on themselves.
#[derive(Default)]
struct Part {
    methods: BTreeSet<String>,
    calls: BTreeSet<String>,
}

/// By type, its parts.
#[derive(Default)]
pub(super) struct Calls(BTreeMap<String, BTreeMap<PathBuf, Part>>);

impl Calls {
    /// Takes a file in.
    pub(super) fn read(&mut self, file: &Path, source: &str) -> Result<()> {
        self.blocks(file, tokens(source, file)?);
        Ok(())
    }

    /// Which files call methods of which.
    pub(super) fn arrows(&self) -> BTreeMap<PathBuf, Vec<PathBuf>> {
        let mut arrows = BTreeMap::<PathBuf, Vec<PathBuf>>::new();
        for parts in self.0.values() {
            for (file, part) in parts {
                let to = arrows.entry(file.clone()).or_default();
                for (other, theirs) in parts {
                    let calls = part.calls.iter().any(|call| theirs.methods.contains(call));
                    if other != file && calls && !to.contains(other) {
                        to.push(other.clone());
                    }
                }
            }
        }
        arrows
    }

    /// Finds `impl Type { … }`, in modules of the file too, but not those of tests.
    fn blocks(&mut self, file: &Path, stream: TokenStream) {
        let tokens: Vec<TokenTree> = stream.into_iter().collect();
        for (at, token) in tokens.iter().enumerate() {
            match token {
                TokenTree::Ident(word) if word == "impl" => {
                    if let Some((name, body)) = block(&tokens[at + 1..]) {
                        let part = self.0.entry(name).or_default().entry(file.into()).or_default();
                        part.read(body);
                    }
                }
                TokenTree::Group(body)
                    if body.delimiter() == Delimiter::Brace && is_module(&tokens, at) =>
                {
                    self.blocks(file, body.stream());
                }
                _ => {}
            }
        }
    }
}

impl Part {
    /// Takes the body of an `impl` in.
    fn read(&mut self, body: TokenStream) {
        for pair in body.clone().into_iter().collect::<Vec<_>>().windows(2) {
            if let [TokenTree::Ident(word), TokenTree::Ident(name)] = pair
                && word == "fn"
            {
                self.methods.insert(name.to_string());
            }
        }
        self.called(body);
    }

    fn called(&mut self, stream: TokenStream) {
        let tokens: Vec<TokenTree> = stream.into_iter().collect();
        for (at, token) in tokens.iter().enumerate() {
            match token {
                TokenTree::Group(group) => self.called(group.stream()),
                TokenTree::Ident(word) if word == "self" || word == "Self" => {
                    let steps = if word == "self" { 1 } else { 2 };
                    let mark = if word == "self" { '.' } else { ':' };
                    let marks = tokens[at + 1..].iter().take(steps);
                    let leads = marks.clone().count() == steps
                        && marks
                            .clone()
                            .all(|one| matches!(one, TokenTree::Punct(p) if p.as_char() == mark));
                    if let (true, Some(TokenTree::Ident(name)), Some(TokenTree::Group(group))) =
                        (leads, tokens.get(at + 1 + steps), tokens.get(at + 2 + steps))
                        && group.delimiter() == Delimiter::Parenthesis
                    {
                        self.calls.insert(name.to_string());
                    }
                }
                _ => {}
            }
        }
    }
}

/// The type of an `impl` that is none of a trait's, and its body.
fn block(tokens: &[TokenTree]) -> Option<(String, TokenStream)> {
    let end = tokens.iter().position(
        |token| matches!(token, TokenTree::Group(body) if body.delimiter() == Delimiter::Brace),
    )?;
    let TokenTree::Group(body) = &tokens[end] else { return None };
    let (mut depth, mut name) = (0, None);
    for (at, token) in tokens[..end].iter().enumerate() {
        match token {
            TokenTree::Punct(punct) if punct.as_char() == '<' => depth += 1,
            TokenTree::Punct(punct) if punct.as_char() == '>' => {
                let arrow =
                    at > 0 && matches!(&tokens[at - 1], TokenTree::Punct(p) if p.as_char() == '-');
                depth -= i32::from(!arrow);
            }
            TokenTree::Ident(word) if depth == 0 && word == "for" => return None,
            TokenTree::Ident(word) if depth == 0 && word == "where" => break,
            // The last word of a path is the type's.
            TokenTree::Ident(word) if depth == 0 => name = Some(word.to_string()),
            // `impl X;` stands in no code of ours; `-> impl X` has no body of its own.
            TokenTree::Punct(punct) if depth == 0 && matches!(punct.as_char(), ';' | ',') => {
                return None;
            }
            _ => {}
        }
    }
    Some((name?, body.stream()))
}

/// Whether the braces at a place are a module's, and not that of tests.
fn is_module(tokens: &[TokenTree], at: usize) -> bool {
    match at.checked_sub(2).map(|begin| &tokens[begin..at]) {
        Some([TokenTree::Ident(word), TokenTree::Ident(name)]) => {
            word == "mod" && name != "tests" && name != "test"
        }
        _ => false,
    }
}
