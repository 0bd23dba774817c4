//! What a reader of an imported trace should know of the record behind it, and texts that fit on a line.
//!
//! Main types: [`Note`], [`NoteKind`]. Neighbours: the readers of the formats write notes, `record` puts them into the
//! header.

/// Longest label of a mark and longest value of a header line, in bytes.
const MOST_BYTES: usize = 1_000;

/// Something that the trace's reader should know of the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// What it is about.
    pub kind: NoteKind,
    /// One sentence.
    pub text: String,
}

/// What a note is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NoteKind {
    /// What the record can't say.
    Missing,
    /// What was guessed.
    Guessed,
    /// What the record says and the trace does not.
    LeftOut,
}

impl NoteKind {
    /// The key of its header line.
    pub const fn key(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Guessed => "guessed",
            Self::LeftOut => "left_out",
        }
    }
}

/// The text without line breaks and other control characters, and without spaces around it, cut to a length that fits
/// on a line of a trace.
pub(super) fn one_line(text: &str) -> String {
    let fits = text.char_indices().take_while(|(at, c)| at + c.len_utf8() <= MOST_BYTES);
    let line: String = fits.map(|(_, c)| if c.is_control() { ' ' } else { c }).collect();
    line.trim().to_owned()
}

/// `1 block`, `2 blocks`.
pub(super) fn count_of(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

#[cfg(test)]
mod tests {
    use super::{MOST_BYTES, one_line};

    #[test]
    fn any_text_becomes_one_line() {
        assert_eq!(one_line(" a\nb\r\tc\0 "), "a b  c");
        assert_eq!(one_line("\n"), "");
        let long = "é".repeat(MOST_BYTES);
        assert_eq!(one_line(&long).len(), MOST_BYTES);
        assert_eq!(one_line(&format!("x{long}")).len(), MOST_BYTES - 1);
    }
}
