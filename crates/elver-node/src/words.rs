//! What is said when no memory can be had for it: whoever hangs may hold the allocator's lock.

use std::fmt;

/// Bytes of a text.
const BYTES_MAX: usize = 512;

/// A line of text that needs no memory beside itself. What is too much is left out.
#[derive(Clone, Copy)]
pub struct Words {
    bytes: [u8; BYTES_MAX],
    len: usize,
    /// Something was left out, and so is what comes behind it.
    is_cut: bool,
}

impl Words {
    /// None.
    pub const NONE: Words = Words { bytes: [0; BYTES_MAX], len: 0, is_cut: false };

    /// These.
    pub fn of(text: fmt::Arguments<'_>) -> Words {
        let mut words = Words::NONE;
        // It takes all, or leaves it out.
        let _ = fmt::Write::write_fmt(&mut words, text);
        words
    }

    /// What was said.
    pub fn as_str(&self) -> &str {
        // There are whole characters alone.
        std::str::from_utf8(&self.bytes[..self.len]).unwrap_or_default()
    }
}

impl fmt::Write for Words {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for one in text.chars() {
            // It is one line.
            let one = if one.is_control() { ' ' } else { one };
            let end = self.len + one.len_utf8();
            self.is_cut |= end > BYTES_MAX;
            if self.is_cut {
                break;
            }
            one.encode_utf8(&mut self.bytes[self.len..end]);
            self.len = end;
        }
        Ok(())
    }
}

impl fmt::Display for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_one_line_of_whole_characters_as_far_as_there_is_room() {
        assert_eq!(Words::NONE.as_str(), "");
        assert_eq!(Words::of(format_args!("{} ms:\n\t{}", 7, "é")).as_str(), "7 ms:  é");
        let long = "é".repeat(BYTES_MAX);
        let words = Words::of(format_args!("x{long}y"));
        assert_eq!(words.as_str(), format!("x{}", "é".repeat(BYTES_MAX / 2 - 1)));
    }
}
