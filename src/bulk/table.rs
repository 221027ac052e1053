//! Which rows have a result, by line.
//!
//! Invariant: pure. Memory follows the results that are there, not the numbers in them.

use std::collections::HashMap;

use super::hash;

/// Two bytes a row, where rows lie together.
#[derive(Debug, Default)]
pub(super) struct Table {
    pages: HashMap<u64, Box<[u16; 256]>>,
    last: u64,
}

/// What a result says of its row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) ok: bool,
    /// It failed, and to send it again may be to do it twice.
    pub(super) maybe_executed: bool,
}

/// What the table knows of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// It has no result.
    No,
    /// It has one.
    Result(Ended),
    /// There is one for this line, of another row.
    Other,
}

/// More rows than any input has: at 1,000 a second they take half a year.
const MOST: u64 = 1 << 34;

/// Whether a row may have this number.
pub(super) fn is_line(line: u64) -> bool {
    (1..MOST).contains(&line)
}

impl Table {
    /// Of the rows that have a result, or had one.
    pub(super) fn last_line(&self) -> u64 {
        self.last
    }

    /// The row has a result; what the one before said.
    pub(super) fn put(&mut self, line: u64, id: &str, ended: Ended) -> Option<Ended> {
        self.last = self.last.max(line);
        let (page, place) = place(line);
        let page = self.pages.entry(page).or_insert_with(|| Box::new([0; 256]));
        let mark = of_id(id) << 2 | u16::from(ended.maybe_executed) << 1 | u16::from(ended.ok);
        ended_of(std::mem::replace(&mut page[place], mark))
    }

    pub(super) fn look(&self, line: u64, id: &str) -> Known {
        let (page, place) = place(line);
        let mark = self.pages.get(&page).map_or(0, |page| page[place]);
        match ended_of(mark) {
            None => Known::No,
            Some(ended) if mark >> 2 == of_id(id) => Known::Result(ended),
            Some(_) => Known::Other,
        }
    }
}

/// The page of a line, and its place there.
fn place(line: u64) -> (u64, usize) {
    (line >> 8, usize::from(line.to_le_bytes()[0]))
}

/// 0: there is none; else 14 bits of the id's hash, and two of what the result says.
fn ended_of(mark: u16) -> Option<Ended> {
    (mark != 0).then_some(Ended { ok: mark & 1 == 1, maybe_executed: mark & 2 == 2 })
}

/// 1 to 16,383.
fn of_id(id: &str) -> u16 {
    u16::try_from(hash(id.as_bytes()) % 16_383).unwrap_or(0) + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_far_row_takes_a_page() {
        let mut table = Table::default();
        let (good, bad) = (Ended { ok: true, ..Ended::default() }, Ended { ok: false, maybe_executed: true });
        for line in [1, 255, 256, MOST - 1] {
            assert_eq!(table.put(line, "a", bad), None);
        }
        assert_eq!((table.pages.len(), table.last_line()), (3, MOST - 1));
        assert_eq!(table.put(256, "a", good), Some(bad));
        let looks =
            [(256, "a"), (255, "a"), (255, "b"), (257, "a"), (1 << 40, "a")].map(|(line, id)| table.look(line, id));
        assert_eq!(looks, [Known::Result(good), Known::Result(bad), Known::Other, Known::No, Known::No]);
        assert_eq!([0, 1, MOST - 1, MOST].map(is_line), [false, true, true, false]);
    }
}
