//! What a run can choose from: the bundled traces, the public cases, the policies of Concertina, questions on host
//! time.
//!
//! Main types: [`TraceFile`], [`PolicyName`], [`SpeedSection`]. Neighbours: `allocator_name` has the allocators; `case`
//! runs what was chosen; the files are in `benches/traces`, those of the public cases in `benches/traces/cases`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use concertina_trace::PublicCase;

/// Full names of the bundled traces. The part before the first `_` is the short name.
const BUNDLED: &[&str] = &[
    "s1_middle",
    "s2_big_then_alternate",
    "s3_three_holes",
    "s4_nlp_dynamic",
    "s5_small_holes",
    "s6_random",
    "s7_streams",
    "t1_gpt2_train",
    "t2_llama_lora",
    "t4_bert_train",
    "t5_resnet50_multiscale",
    "t7_serve_nopaging",
    "t8_moe_train",
];

fn short_name(name: &str) -> &str {
    name.split_once('_').map_or(name, |(short, _)| short)
}

/// A trace that a run may replay: a bundled one or a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceFile {
    name: String,
    path: PathBuf,
}

/// The word that stands for all public cases.
const ALL_CASES: &str = "cases";

/// A word that is neither the name of a bundled trace nor a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no trace `{0}`: neither a file nor one of the bundled traces ({list}) nor a public case ({cases})",
    list = short_names(),
    cases = case_names()
)]
pub struct UnknownTrace(pub String);

fn case_names() -> String {
    PublicCase::ALL.iter().map(|case| case.name()).collect::<Vec<_>>().join(", ")
}

fn short_names() -> String {
    BUNDLED.iter().map(|name| short_name(name)).collect::<Vec<_>>().join(", ")
}

impl TraceFile {
    /// The bundled traces, in the order of their names.
    pub fn bundled() -> Vec<Self> {
        BUNDLED.iter().map(|name| Self::of_bundled(name)).collect()
    }

    /// The public cases, in the order of their names.
    pub fn cases() -> Vec<Self> {
        PublicCase::ALL.iter().copied().map(Self::of_case).collect()
    }

    /// A public case.
    pub fn of_case(case: PublicCase) -> Self {
        Self::below("traces/cases", case.name())
    }

    fn of_bundled(name: &str) -> Self {
        Self::below("traces", name)
    }

    fn below(directory: &str, name: &str) -> Self {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join(directory);
        Self { name: name.to_owned(), path: directory.join(format!("{name}.trace.zst")) }
    }

    /// All that the word stands for: `cases` for the public cases, any other for what [`find`](Self::find) finds.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub fn find_all(word: &str) -> Result<Vec<Self>, UnknownTrace> {
        if word == ALL_CASES { Ok(Self::cases()) } else { Self::find(word).map(|file| vec![file]) }
    }

    /// The bundled trace of this name, long (`t1_gpt2_train`) or short (`t1`), the public case of this name, or else
    /// the file at this path, whose name is then that of the file without `.trace` and `.zst`.
    ///
    /// # Errors
    /// [`UnknownTrace`] if there is neither.
    pub fn find(word: &str) -> Result<Self, UnknownTrace> {
        if let Some(name) = BUNDLED.iter().find(|name| **name == word || short_name(name) == word) {
            return Ok(Self::of_bundled(name));
        }
        if let Some(case) = PublicCase::ALL.iter().find(|case| case.name() == word) {
            return Ok(Self::of_case(*case));
        }
        let path = PathBuf::from(word);
        if !path.is_file() {
            return Err(UnknownTrace(word.to_owned()));
        }
        let file = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let name = file.strip_suffix(".zst").unwrap_or(&file);
        let name = name.strip_suffix(".trace").unwrap_or(name).to_owned();
        Ok(Self { name, path })
    }

    /// Its name, without a directory and endings.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

macro_rules! names {
    (
        $(#[$doc:meta])* $type:ident, $(#[$error_doc:meta])* $error:ident($noun:literal)
        { $($(#[$variant_doc:meta])* $variant:ident = $name:literal,)* }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $type {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $type {
            /// All of them, in the order in which tables show them.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Its name on the command line and in JSON.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }

        $(#[$error_doc])*
        #[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
        #[error("no {} `{}`; there are: {}", $noun, .0, [$($name),*].join(", "))]
        pub struct $error(pub String);

        impl FromStr for $type {
            type Err = $error;

            fn from_str(word: &str) -> Result<Self, $error> {
                let known = Self::ALL.iter().copied().find(|known| known.name() == word);
                known.ok_or_else(|| $error(word.to_owned()))
            }
        }
    };
}

names! {
    /// When Concertina takes new frames rather than free ones that another page holds.
    PolicyName,
    /// A word that names no policy.
    UnknownPolicy("policy")
    {
        /// Steal before creating.
        Lean = "lean",
        /// Create while mapped bytes stay within 1.05 times the live peak, then steal.
        Balanced = "balanced",
    }
}

names! {
    /// A question on host time that `cargo xtask speed` answers.
    SpeedSection,
    /// A word that names no section.
    UnknownSection("section")
    {
        /// A pair of one size and nothing else, beside peers.
        Hot = "hot",
        /// Pairs one at a time: how far from the median one may be.
        Single = "single",
        /// One of many live blocks goes, another comes, beside peers.
        Churn = "churn",
        /// Two threads, by what they share.
        Threads = "threads",
        /// While another thread takes statistics.
        Snapshot = "snapshot",
        /// Blocks that another thread frees.
        Handover = "handover",
        /// By live blocks.
        Live = "live",
        /// By mapped pages.
        Mapped = "mapped",
        /// An event of a whole trace, cold and warm.
        Replay = "replay",
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{BUNDLED, PolicyName, PublicCase, TraceFile};

    fn traces_in(directory: &str) -> Vec<String> {
        let mut found: Vec<String> = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(directory))
            .expect("the directory of the traces")
            .filter_map(|entry| {
                let name = entry.expect("an entry").file_name().into_string().expect("UTF-8");
                name.strip_suffix(".trace.zst").map(str::to_owned)
            })
            .collect();
        found.sort();
        found
    }

    #[test]
    fn every_bundled_trace_is_there_and_none_is_forgotten() {
        assert_eq!(traces_in("traces"), BUNDLED);
        let mut cases: Vec<&str> = PublicCase::ALL.iter().map(|case| case.name()).collect();
        cases.sort_unstable();
        assert_eq!(traces_in("traces/cases"), cases);
    }

    #[test]
    fn public_cases_are_found_one_by_one_and_all_together() {
        for (file, case) in TraceFile::cases().into_iter().zip(PublicCase::ALL) {
            assert_eq!(TraceFile::find(case.name()), Ok(file.clone()));
            assert_eq!(TraceFile::find_all(case.name()), Ok(vec![file]));
        }
        assert_eq!(TraceFile::find_all("cases"), Ok(TraceFile::cases()));
        assert_eq!(TraceFile::find_all("t1"), TraceFile::find("t1").map(|file| vec![file]));
        assert_eq!(TraceFile::find_all("t99"), TraceFile::find("t99").map(|file| vec![file]));
    }

    #[test]
    fn long_and_short_names_and_paths_find_the_same_trace() {
        let trace = TraceFile::find("t1").expect("bundled");
        assert_eq!(trace.name(), "t1_gpt2_train");
        assert_eq!(TraceFile::find("t1_gpt2_train"), Ok(trace.clone()));
        let path = trace.path().to_str().expect("UTF-8");
        assert_eq!(TraceFile::find(path), Ok(trace.clone()));
        let mut short: Vec<&str> = BUNDLED.iter().map(|name| super::short_name(name)).collect();
        short.dedup();
        assert_eq!(short.len(), BUNDLED.len(), "short names are unique");
    }

    #[test]
    fn unknown_names_are_quoted_and_the_known_ones_listed() {
        let unknown = TraceFile::find("t99").expect_err("there is none").to_string();
        assert!(unknown.contains("`t99`") && unknown.contains("t1, t2"), "{unknown}");
        assert!(unknown.contains("rmm35, rmm1245"), "{unknown}");
        let unknown = "greedy".parse::<PolicyName>().expect_err("none").to_string();
        assert_eq!(unknown, "no policy `greedy`; there are: lean, balanced");
    }
}
