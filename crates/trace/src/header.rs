//! The `# key: value` lines of a trace, in their order.
//!
//! Main types: [`Header`]. Neighbours: `reader` fills it, `writer` writes it, `generator` makes one.

use crate::mistake::{Mistake, excerpt};

/// Where a trace comes from and what it is made for. Keys may repeat; the order is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    lines: Vec<(String, String)>,
}

impl Header {
    /// A header without lines.
    pub const fn new() -> Self {
        Self { lines: Vec::new() }
    }

    /// Adds a line at the end.
    ///
    /// # Errors
    /// [`Mistake::MalformedHeader`] if the key is empty, begins or ends with a space or holds `:`;
    /// [`Mistake::LineBreak`] if key or value hold one.
    pub fn push(&mut self, key: &str, value: &str) -> Result<(), Mistake> {
        let line = || format!("# {key}: {value}");
        if key.contains('\n') || value.contains('\n') {
            return Err(Mistake::LineBreak { found: excerpt(line().as_bytes()) });
        }
        if key.is_empty() || key.contains(':') || key.starts_with(' ') || key.ends_with(' ') {
            return Err(Mistake::MalformedHeader { found: excerpt(line().as_bytes()) });
        }
        self.lines.push((key.to_owned(), value.to_owned()));
        Ok(())
    }

    /// Adds a whole line, `# key: value`. `Ok(false)` if it is no header line at all.
    pub(crate) fn push_line(&mut self, line: &str) -> Result<bool, Mistake> {
        let Some(rest) = line.strip_prefix('#') else {
            return Ok(false);
        };
        let malformed = || Mistake::MalformedHeader { found: excerpt(line.as_bytes()) };
        let (key, value) =
            rest.strip_prefix(' ').and_then(|rest| rest.split_once(':')).ok_or_else(malformed)?;
        // A value may be empty; then an editor may have taken the space away.
        let value = if value.is_empty() { "" } else { value.strip_prefix(' ').ok_or_else(malformed)? };
        self.push(key, value)?;
        Ok(true)
    }

    /// The value of the first line with this key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.lines().find(|(name, _)| *name == key).map(|(_, value)| value)
    }

    /// The same as a number; none too if it is not one.
    pub fn number(&self, key: &str) -> Option<u64> {
        self.get(key)?.parse().ok()
    }

    /// All lines, in order, as key and value.
    pub fn lines(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.lines.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// Number of lines.
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::Header;
    use crate::mistake::Mistake;

    #[test]
    fn lines_keep_their_order_and_the_first_of_a_key_counts() {
        let mut header = Header::new();
        for line in ["# b: 2", "# a: one: two", "# b: 3", "# empty:", "# spaced key:  x "] {
            assert!(header.push_line(line).unwrap(), "{line}");
        }
        let lines: Vec<_> = header.lines().collect();
        assert_eq!(lines, [("b", "2"), ("a", "one: two"), ("b", "3"), ("empty", ""), ("spaced key", " x ")]);
        assert_eq!(header.get("b"), Some("2"));
        assert_eq!(header.number("b"), Some(2));
        assert_eq!(header.number("a"), None);
        assert!(!header.push_line("a 1 2 0").unwrap());
    }

    #[test]
    fn what_is_no_key_and_value_is_refused() {
        for line in ["#", "# ", "#a: b", "# a", "# : b", "# a:b", "#  a: b", "# a : b"] {
            let found = Header::new().push_line(line).unwrap_err();
            assert!(matches!(found, Mistake::MalformedHeader { .. }), "{line:?}: {found}");
        }
        assert!(matches!(Header::new().push("a\nb", "c"), Err(Mistake::LineBreak { .. })));
        assert!(matches!(Header::new().push("a", "c\nd"), Err(Mistake::LineBreak { .. })));
    }
}
