//! The options of VPMM, under the names of its environment variables: `page_size` is `VPMM_PAGE_SIZE`.
//!
//! Main type: [`VpmmConf`]. Neighbours: `vpmm` obeys it; `options` reads the words.

use std::fmt;
use std::str::FromStr;

use crate::options::{OptionsError, pairs, value};

/// What VPMM lets its users choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VpmmConf {
    /// `page_size` (`VPMM_PAGE_SIZE`): bytes of a page, a multiple of the device's granularity; the granularity itself
    /// without the option.
    pub page_bytes: Option<u64>,
    /// `va_size` (`VPMM_VA_SIZE`): addresses that are reserved at once, in bytes, a multiple of the page.
    pub chunk_bytes: u64,
    /// `pages` (`VPMM_PAGES`): pages that are created before the first request.
    pub initial_pages: u64,
}

impl Default for VpmmConf {
    fn default() -> Self {
        Self::plain()
    }
}

/// Sizes of an exbibyte and more are mistakes.
const MOST_BYTES: u64 = 1 << 60;

impl VpmmConf {
    /// No option given: `VpmmConfig::default()` of the source.
    pub const fn plain() -> Self {
        Self { page_bytes: None, chunk_bytes: 8 << 40, initial_pages: 0 }
    }
}

impl FromStr for VpmmConf {
    type Err = OptionsError;

    /// Reads options between commas, such as `page_size:4194304,pages:100`; of several the last one counts.
    fn from_str(list: &str) -> Result<Self, OptionsError> {
        let bytes = |pair| value(pair, "bytes above 0", |bytes: &u64| (1..MOST_BYTES).contains(bytes));
        let mut conf = Self::plain();
        for pair in pairs(list) {
            let pair = pair?;
            match pair.0 {
                "page_size" => conf.page_bytes = Some(bytes(pair)?),
                "va_size" => conf.chunk_bytes = bytes(pair)?,
                "pages" => {
                    conf.initial_pages =
                        value(pair, "a number of pages", |&pages| pages < u64::from(u32::MAX))?;
                }
                other => {
                    let known = "page_size, va_size, pages";
                    return Err(OptionsError::Unknown { option: other.to_owned(), known });
                }
            }
        }
        Ok(conf)
    }
}

impl fmt::Display for VpmmConf {
    /// The options that differ from the default.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = Self::plain();
        let mut options: Vec<String> = Vec::new();
        if let Some(bytes) = self.page_bytes {
            options.push(format!("page_size:{bytes}"));
        }
        if self.chunk_bytes != plain.chunk_bytes {
            options.push(format!("va_size:{}", self.chunk_bytes));
        }
        if self.initial_pages != plain.initial_pages {
            options.push(format!("pages:{}", self.initial_pages));
        }
        f.write_str(&options.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::VpmmConf;

    #[test]
    fn options_read_back_as_they_are_written() {
        for list in ["", "page_size:4194304", "va_size:1073741824,pages:12"] {
            let conf: VpmmConf = list.parse().expect("options");
            assert_eq!(conf.to_string(), list);
        }
        let conf: VpmmConf = "page_size:2097152,pages:3".parse().expect("options");
        assert_eq!((conf.page_bytes, conf.chunk_bytes, conf.initial_pages), (Some(2 << 20), 8 << 40, 3));
    }

    #[test]
    fn what_is_wrong_is_quoted() {
        let said = |list: &str| list.parse::<VpmmConf>().expect_err("it is wrong").to_string();
        assert_eq!(said("page:1"), "no option `page`; there are: page_size, va_size, pages");
        assert_eq!(said("page_size:0"), "`page_size` is bytes above 0, not `0`");
        assert_eq!(said("va_size:8TB"), "`va_size` is bytes above 0, not `8TB`");
        assert_eq!(said("pages:-1"), "`pages` is a number of pages, not `-1`");
    }
}
