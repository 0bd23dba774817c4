//! The allocators that a run can choose from, by the names that the command line and the JSON have.
//!
//! Main types: [`AllocatorName`], [`AllocatorList`]. Neighbours: `targets` makes the allocator that a name stands for;
//! `concertina_baselines` reads the options.

use std::fmt;
use std::str::FromStr;

use concertina_baselines::{
    BfcConf, ConfError, DriverPoolConf, FixedConf, GmlakeConf, OptionsError, PytorchConf, RmmArenaConf,
    RmmPoolConf, VpmmConf,
};

/// An allocator that traces can be replayed on, with its options.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AllocatorName {
    /// `direct`: every allocation is a `cudaMalloc`, every free a `cudaFree`.
    Direct,
    /// `driver-pool`: the driver's own pool, `cudaMallocAsync`, with options after a colon.
    DriverPool(DriverPoolConf),
    /// `pytorch` and `pytorch-expandable`: PyTorch's caching allocator, with options after a colon as in
    /// `PYTORCH_CUDA_ALLOC_CONF`.
    Pytorch(PytorchConf),
    /// `bfc`: TensorFlow's best fit with coalescing, with options after a colon.
    Bfc(BfcConf),
    /// `rmm-pool`: RMM's `pool_memory_resource`.
    RmmPool(RmmPoolConf),
    /// `rmm-arena`: RMM's `arena_memory_resource`.
    RmmArena(RmmArenaConf),
    /// `gmlake`: GMLake, PyTorch's allocator with stitched blocks, with options after a colon.
    Gmlake(GmlakeConf),
    /// `vpmm`: VPMM, the pool of OpenVM's prover, with options after a colon.
    Vpmm(VpmmConf),
    /// `fixed`: one malloc of everything, cut up by hand, with options after a colon.
    Fixed(FixedConf),
    /// `concertina`: this project's allocator.
    Concertina,
    /// `on-malloc`: the same on malloc segments, as on a device without virtual memory: what virtual memory buys.
    OnMalloc,
}

/// A word that names no allocator, or options that it does not take.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum AllocatorNameError {
    /// There is no such allocator.
    #[error("no allocator `{0}`; there are: {list}", list = names())]
    Unknown(String),
    /// Something stands behind the name of an allocator that has no options.
    #[error("allocator `{0}` takes no options")]
    NoOptions(&'static str),
    /// The options are wrong, of an allocator other than PyTorch's.
    #[error("allocator `{allocator}`: {error}")]
    Options {
        /// The allocator.
        allocator: &'static str,
        /// What is wrong with them.
        #[source]
        error: OptionsError,
    },
    /// The options of PyTorch's allocator are wrong.
    #[error("allocator `{allocator}`: {error}")]
    Conf {
        /// The allocator.
        allocator: &'static str,
        /// What is wrong with them.
        #[source]
        error: ConfError,
    },
}

fn names() -> String {
    AllocatorName::ALL.iter().map(|allocator| allocator.name()).collect::<Vec<_>>().join(", ")
}

impl AllocatorName {
    /// All of them without options, in the order in which tables show them.
    pub const ALL: &[Self] = &[
        Self::Direct,
        Self::DriverPool(DriverPoolConf::plain()),
        Self::Pytorch(PytorchConf::native()),
        Self::Pytorch(PytorchConf::expandable()),
        Self::Bfc(BfcConf::growing()),
        Self::RmmPool(RmmPoolConf::DEFAULT),
        Self::RmmArena(RmmArenaConf::DEFAULT),
        Self::Gmlake(GmlakeConf::plain()),
        Self::Vpmm(VpmmConf::plain()),
        Self::Fixed(FixedConf::all()),
        Self::Concertina,
        Self::OnMalloc,
    ];

    /// Those that are compared unless others are named.
    pub const DEFAULT: &[Self] = &[
        Self::Direct,
        Self::Pytorch(PytorchConf::native()),
        Self::Pytorch(PytorchConf::expandable()),
        Self::Concertina,
    ];

    /// Its name, without options.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::DriverPool(_) => "driver-pool",
            Self::Pytorch(conf) if conf.expandable_segments => "pytorch-expandable",
            Self::Pytorch(_) => "pytorch",
            Self::Bfc(_) => "bfc",
            Self::Fixed(_) => "fixed",
            Self::RmmPool(_) => "rmm-pool",
            Self::RmmArena(_) => "rmm-arena",
            Self::Gmlake(_) => "gmlake",
            Self::Vpmm(_) => "vpmm",
            Self::Concertina => "concertina",
            Self::OnMalloc => "on-malloc",
        }
    }

    /// Whether a [`PolicyName`](crate::PolicyName) changes what it does.
    pub const fn has_policy(&self) -> bool {
        matches!(self, Self::Concertina | Self::OnMalloc)
    }

    fn of_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|known| known.name() == name)
    }

    /// An allocator of this name with these options.
    fn read<C: FromStr<Err = OptionsError>>(
        &self,
        options: &str,
        allocator: impl FnOnce(C) -> Self,
    ) -> Result<Self, AllocatorNameError> {
        let conf = options.parse().map(allocator);
        conf.map_err(|error| AllocatorNameError::Options { allocator: self.name(), error })
    }

    fn options(&self) -> String {
        match self {
            Self::Pytorch(conf) => PytorchConf { expandable_segments: false, ..*conf }.to_string(),
            Self::DriverPool(conf) => conf.to_string(),
            Self::Bfc(conf) => conf.to_string(),
            Self::Fixed(conf) => conf.to_string(),
            Self::RmmPool(conf) => conf.to_string(),
            Self::RmmArena(conf) => conf.to_string(),
            Self::Gmlake(conf) => conf.to_string(),
            Self::Vpmm(conf) => conf.to_string(),
            Self::Direct | Self::Concertina | Self::OnMalloc => String::new(),
        }
    }
}

impl fmt::Display for AllocatorName {
    /// The name, and after a colon the options that are not the default.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.options() {
            options if options.is_empty() => f.pad(self.name()),
            options => f.pad(&format!("{}:{options}", self.name())),
        }
    }
}

impl FromStr for AllocatorName {
    type Err = AllocatorNameError;

    fn from_str(word: &str) -> Result<Self, AllocatorNameError> {
        let (name, options) = word.split_once(':').unwrap_or((word, ""));
        let known = Self::of_name(name).ok_or_else(|| AllocatorNameError::Unknown(name.to_owned()))?;
        match known {
            Self::Pytorch(conf) => {
                // The name is the first option: a later one may say otherwise.
                let conf = format!("{conf},{options}");
                let conf = conf.strip_prefix(',').unwrap_or(&conf).parse();
                conf.map(Self::Pytorch)
                    .map_err(|error| AllocatorNameError::Conf { allocator: known.name(), error })
            }
            Self::DriverPool(_) => known.read(options, Self::DriverPool),
            Self::Bfc(_) => known.read(options, Self::Bfc),
            Self::Fixed(_) => known.read(options, Self::Fixed),
            Self::RmmPool(_) => known.read(options, Self::RmmPool),
            Self::RmmArena(_) => known.read(options, Self::RmmArena),
            Self::Gmlake(_) => known.read(options, Self::Gmlake),
            Self::Vpmm(_) => known.read(options, Self::Vpmm),
            _ if options.is_empty() => Ok(known),
            _ => Err(AllocatorNameError::NoOptions(known.name())),
        }
    }
}

/// Allocators to be compared: names between commas. Commas also part the options of one: what names no allocator goes
/// on with the options before.
#[derive(Clone, Debug, PartialEq)]
pub struct AllocatorList(pub Vec<AllocatorName>);

impl Default for AllocatorList {
    /// [`AllocatorName::DEFAULT`].
    fn default() -> Self {
        Self(AllocatorName::DEFAULT.to_vec())
    }
}

impl fmt::Display for AllocatorList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.iter().map(ToString::to_string).collect::<Vec<_>>().join(","))
    }
}

impl FromStr for AllocatorList {
    type Err = AllocatorNameError;

    fn from_str(list: &str) -> Result<Self, AllocatorNameError> {
        let mut words: Vec<String> = Vec::new();
        for piece in list.split(',') {
            let name = piece.split(':').next().unwrap_or(piece);
            match words.last_mut() {
                Some(word) if word.contains(':') && AllocatorName::of_name(name).is_none() => {
                    word.push(',');
                    word.push_str(piece);
                }
                _ => words.push(piece.to_owned()),
            }
        }
        words.iter().map(|word| word.parse()).collect::<Result<_, _>>().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::{AllocatorList, AllocatorName};

    #[test]
    fn names_read_back_as_they_are_written() {
        for allocator in AllocatorName::ALL {
            assert_eq!(allocator.to_string().parse(), Ok(*allocator));
        }
        for word in [
            "pytorch:max_split_size_mb:128",
            "pytorch-expandable:large_segment_size_mb:64,garbage_collection_threshold:0.8",
            "pytorch:roundup_power2_divisions:4",
            "driver-pool:opportunistic:false,release_threshold_mb:max",
            "bfc:allow_growth:false,memory_fraction:0.75",
            "fixed:memory_mb:4096",
            "rmm-pool:initial:0.5,maximum:0.9",
            "rmm-arena:initial:1,size_classes:true",
            "gmlake:fragLimit:67108864,defragLevel:1",
            "vpmm:page_size:4194304",
        ] {
            let allocator: AllocatorName = word.parse().expect("a name with options");
            assert_eq!(allocator.to_string(), word);
        }
        let same: AllocatorName = "pytorch:expandable_segments:True".parse().expect("the long way");
        assert_eq!(same.to_string(), "pytorch-expandable");
        let other: AllocatorName =
            "pytorch-expandable:expandable_segments:False".parse().expect("the last one holds");
        assert_eq!(other.to_string(), "pytorch");
    }

    #[test]
    fn a_list_keeps_the_options_of_each_together() {
        let list =
            "direct,pytorch:max_split_size_mb:128,roundup_power2_divisions:[64:8,>:1],concertina,pytorch";
        let AllocatorList(names) = list.parse().expect("four allocators");
        assert_eq!(
            names.iter().map(AllocatorName::name).collect::<Vec<_>>(),
            ["direct", "pytorch", "concertina", "pytorch"]
        );
        assert!(names[1].to_string().starts_with("pytorch:max_split_size_mb:128,roundup_power2_divisions:["));
        assert_eq!(names[3].to_string(), "pytorch");
        let all = AllocatorList::default();
        assert_eq!(all.to_string(), "direct,pytorch,pytorch-expandable,concertina");
        assert_eq!(all.to_string().parse(), Ok(all));
    }

    #[test]
    fn what_is_wrong_is_quoted() {
        let said = |list: &str| list.parse::<AllocatorList>().expect_err("it is wrong").to_string();
        let known = "there are: direct, driver-pool, pytorch, pytorch-expandable, bfc, rmm-pool, rmm-arena, gmlake, vpmm, fixed, \
                     concertina, on-malloc";
        assert_eq!(said("direct,jemalloc"), format!("no allocator `jemalloc`; {known}"));
        assert_eq!(said(""), format!("no allocator ``; {known}"));
        assert_eq!(said("direct:a:1"), "allocator `direct` takes no options");
        let options = "there are: initial, maximum";
        assert_eq!(said("rmm-pool:a:1"), format!("allocator `rmm-pool`: no option `a`; {options}"));
        let options = "there are: page_size, va_size, pages";
        assert_eq!(said("vpmm:a:1"), format!("allocator `vpmm`: no option `a`; {options}"));
        assert!(said("pytorch:a:1").starts_with("allocator `pytorch`: no option `a`"));
        assert!(said("bfc:growth:1").starts_with("allocator `bfc`: no option `growth`"));
        assert!(said("pytorch:max_split_size_mb:2,concertina").ends_with("is at least 20, not 2"));
    }
}
