//! The one place that prints.

use std::io::{self, Write};

/// A message on stderr. Nobody is left to tell if that is closed.
pub(crate) fn say(text: &str) {
    let _ = writeln!(io::stderr(), "abide: {}", shown(text));
}

/// A line on stdout.
pub(crate) fn put(line: &str) -> io::Result<()> {
    writeln!(io::stdout(), "{line}")
}

/// Text that a server or a file had a hand in, without what a terminal obeys.
pub(crate) fn shown(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '\n' => shown.push(letter),
            letter if letter.is_control() => shown.extend(letter.escape_default()),
            letter => shown.push(letter),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controls_are_shown_and_not_obeyed() {
        assert_eq!(shown("a\u{1b}[31m\r\u{9b}b\u{7f}ä"), r"a\u{1b}[31m\r\u{9b}b\u{7f}ä");
    }
}
