//! The one place that prints.

use std::{
    fs::OpenOptions,
    io::{self, Write},
    path::Path,
};

/// A message on stderr. Nobody is left to tell if that is closed.
pub(crate) fn say(text: &str) {
    let _ = writeln!(io::stderr(), "abide: {}", shown(text));
}

/// A line on stdout.
pub(crate) fn put(line: &str) -> io::Result<()> {
    writeln!(io::stdout(), "{line}")
}

/// A file that only its owner can read, if it is new.
pub(crate) fn file(path: &Path, text: &str) -> Result<(), String> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let written = options.open(path).and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| format!("{}: {error}", path.display()))
}

/// Text that a server or a file had a hand in, as one line without what a terminal obeys.
pub(crate) fn shown(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        match is_obeyed(letter) {
            true => shown.extend(letter.escape_unicode()),
            false => shown.push(letter),
        }
    }
    shown
}

/// JSON of which a terminal obeys nothing. Such characters stand only in its strings, where they may be escapes.
pub(crate) fn json(json: &str) -> String {
    let mut clean = String::with_capacity(json.len());
    for letter in json.chars() {
        match is_obeyed(letter) {
            true => clean.push_str(&format!("\\u{:04x}", u32::from(letter))),
            false => clean.push(letter),
        }
    }
    clean
}

/// Controls, and invisible characters that turn, hide or break text (Unicode 17, «Bidirectional» and «Format»).
pub(crate) fn is_obeyed(letter: char) -> bool {
    letter.is_control()
        || matches!(
            letter,
            '\u{ad}'
                | '\u{61c}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controls_are_shown_and_not_obeyed() {
        assert_eq!(shown("a\u{1b}[31m\r\n\u{9b}b\u{7f}ä"), r"a\u{1b}[31m\u{d}\u{a}\u{9b}b\u{7f}ä");
        assert_eq!(shown("abc\u{202e}cba\u{2066}–日本"), r"abc\u{202e}cba\u{2066}–日本");
        assert_eq!(json("{\"a\":\"\u{9b}\u{202e}ä\"}"), r#"{"a":"\u009b\u202eä"}"#);
    }
}
