//! Text of others, for a terminal.

use std::borrow::Cow;

/// The text with its control characters, but for ends of lines and tabs, as escapes that can be read: what somebody
/// else named so that it moves the cursor, or types, does neither.
pub fn plain(text: &str) -> Cow<'_, str> {
    let is_control = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    if !text.contains(is_control) {
        return Cow::Borrowed(text);
    }
    let mut plain = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_control(c) {
            plain.extend(c.escape_default());
        } else {
            plain.push(c);
        }
    }
    Cow::Owned(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_obeys_is_left() {
        assert_eq!(plain("a\x1b[2J\x07b\u{9b}2J\r\x7f"), "a\\u{1b}[2J\\u{7}b\\u{9b}2J\\r\\u{7f}");
        assert!(matches!(plain("µs\ta\n"), Cow::Borrowed("µs\ta\n")));
    }
}
