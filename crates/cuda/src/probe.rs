//! What was found out about a device, and why something is missing.
//!
//! Main types: [`Probe`], [`Support`], [`Missing`], [`Granularity`], [`DriverVersion`]. Neighbours: `cuda` fills it in
//! once; `trial` tries what attributes only claim.

use core::fmt;

use concertina_vmm::DriverError;

/// Whether something is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Support {
    /// It is.
    Available,
    /// It is not, or does not work.
    Missing(Missing),
}

impl Support {
    /// Whether it is there.
    pub fn is_available(&self) -> bool {
        matches!(self, Self::Available)
    }
}

impl fmt::Display for Support {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Available => f.write_str("yes"),
            Self::Missing(why) => write!(f, "no: {why}"),
        }
    }
}

/// Why something is not there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Missing {
    /// The device says so.
    #[error("the device's attribute {name} ({number}) is 0")]
    Attribute {
        /// Its name, without `CU_DEVICE_ATTRIBUTE_`.
        name: &'static str,
        /// Its number.
        number: u32,
    },
    /// The device claims it, but a trial failed.
    #[error("a trial with one page could not {step}: {error}")]
    Trial {
        /// What was tried.
        step: &'static str,
        /// The failed call.
        #[source]
        error: DriverError,
    },
    /// What was written through one address was not read through another.
    #[error(
        "a trial with one page wrote {wrote:#04x} to a frame and read {read:#04x} at byte {at} of its other mapping"
    )]
    OtherBytes {
        /// The byte written.
        wrote: u8,
        /// The byte read instead.
        read: u8,
        /// Where, in bytes from the start of the page.
        at: u64,
    },
    /// It was not tried, since what it stands on is missing.
    #[error("not tried: {0}")]
    Untried(&'static str),
}

/// Sizes that memory is mapped in, in bytes, for pinned device memory that is neither exported nor compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granularity {
    /// The smallest: the page of Concertina.
    pub minimum_bytes: u64,
    /// What the driver recommends for speed.
    pub recommended_bytes: u64,
}

/// The CUDA version that a driver is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DriverVersion {
    /// As 12 in 12.8.
    pub major: u32,
    /// As 8 in 12.8.
    pub minor: u32,
}

impl DriverVersion {
    /// From the driver's form: 12080 is 12.8.
    pub(crate) fn from_number(number: u32) -> Self {
        Self { major: number / 1_000, minor: number % 1_000 / 10 }
    }
}

impl fmt::Display for DriverVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// A device as it was found when its driver was made. Its `Display` is a short table, one line a fact.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Probe {
    /// Ordinal of the device.
    pub ordinal: u32,
    /// What the driver calls the device.
    pub device_name: String,
    /// The CUDA version of the driver, if it tells.
    pub driver_version: Option<DriverVersion>,
    /// Reserve, create, map (also twice), set access, write, read back, unmap: claimed by the device and tried.
    pub virtual_memory: Support,
    /// Sizes of pages, where there is virtual memory.
    pub granularity: Option<Granularity>,
    /// One unmap may cover two neighbouring mappings: tried.
    pub unmap_spans_mappings: Support,
    /// Most mappings at once, if the options or an emulated driver say.
    pub max_mappings: Option<u64>,
    /// The driver's own pools (`cuMemAllocAsync`): claimed.
    pub pools: Support,
    /// Network cards may read and write memory created for it: claimed.
    pub gpu_direct_rdma: Support,
    /// Memory may be exported as a file descriptor: claimed.
    pub posix_fd_export: Support,
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "device {}             {}", self.ordinal, self.device_name)?;
        match self.driver_version {
            Some(version) => writeln!(f, "driver for CUDA      {version}")?,
            None => writeln!(f, "driver for CUDA      not told")?,
        }
        writeln!(f, "virtual memory       {}", self.virtual_memory)?;
        if let Some(Granularity { minimum_bytes, recommended_bytes }) = self.granularity {
            writeln!(f, "granularity          {minimum_bytes} bytes, {recommended_bytes} recommended")?;
        }
        writeln!(f, "unmap spans mappings {}", self.unmap_spans_mappings)?;
        match self.max_mappings {
            Some(most) => writeln!(f, "mappings at once     {most}")?,
            None => writeln!(f, "mappings at once     not known")?,
        }
        writeln!(f, "memory pools         {}", self.pools)?;
        writeln!(f, "GPUDirect RDMA       {}", self.gpu_direct_rdma)?;
        write!(f, "export as a file     {}", self.posix_fd_export)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_the_driver_writes_them() {
        let versions = [10_020, 11_080, 12_080, 13_040].map(|n| DriverVersion::from_number(n).to_string());
        assert_eq!(versions, ["10.2", "11.8", "12.8", "13.4"]);
    }

    #[test]
    fn the_table_says_what_is_missing_and_why() {
        let missing = Missing::Attribute { name: "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED", number: 102 };
        let probe = Probe {
            ordinal: 1,
            device_name: "an old card".into(),
            driver_version: None,
            virtual_memory: Support::Missing(missing),
            granularity: None,
            unmap_spans_mappings: Support::Missing(Missing::Untried("no virtual memory")),
            max_mappings: None,
            pools: Support::Available,
            gpu_direct_rdma: Support::Available,
            posix_fd_export: Support::Available,
        };
        let table = probe.to_string();
        assert_eq!(
            table.lines().nth(2),
            Some(
                "virtual memory       no: the device's attribute VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED (102) is 0"
            )
        );
        assert_eq!(table.lines().count(), 8, "{table}");
    }
}
