//! Texts from traces and command lines, made fit for pages, charts and file names.
//!
//! Neighbours: the templates escape what HTML and XML read as markup; here goes what no escape helps against.

use std::borrow::Cow;

/// The text without characters that XML 1.0 can't hold (section 2.2), nor such as turn the direction of what follows.
pub(super) fn clean(text: &str) -> Cow<'_, str> {
    let harmful = |c: char| {
        (c.is_control() && !matches!(c, '\t' | '\n'))
            || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{fffe}' | '\u{ffff}')
    };
    if text.contains(harmful) { text.replace(harmful, "\u{fffd}").into() } else { text.into() }
}

/// At most `most` characters of the cleaned text; a cut is shown.
pub(super) fn short(text: &str, most: usize) -> String {
    let text = clean(text);
    if text.chars().count() <= most {
        return text.into_owned();
    }
    text.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

/// Longest slug in characters: file systems take 255 bytes, and something comes behind.
const SLUG: usize = 80;

/// A name for files and links: ASCII letters, digits, `-` and `_`; never empty.
pub(super) fn slug(text: &str) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' };
    let slug: String = text.chars().take(SLUG).map(safe).collect();
    match slug.trim_matches('-') {
        "" => "trace".to_owned(),
        slug => slug.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::{clean, short, slug};

    #[test]
    fn texts_are_fit_for_their_place() {
        assert_eq!(clean("a\u{1}b\tc\u{202e}d\u{9f}"), "a\u{fffd}b\tc\u{fffd}d\u{fffd}");
        assert_eq!((short("abcde", 5), short("abcdef", 5)), ("abcde".to_owned(), "abcd…".to_owned()));
        let slugs = ["t1_gpt2_train", "../../etc/passwd", "a b", "<x>", "…", "", "CON.svg"].map(slug);
        assert_eq!(slugs, ["t1_gpt2_train", "etc-passwd", "a-b", "x", "trace", "trace", "CON-svg"]);
        assert_eq!(slug(&"x".repeat(999)).len(), 80);
    }
}
