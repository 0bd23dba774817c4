//! The CUDA device that a command measures: this machine's GPU, or the emulated libcuda in its place.
//!
//! Main types: [`MeasuredDevice`], [`OpenDevice`], [`DeviceFacts`]. Neighbours: `probe`, `contract` and `gpu` take it.

use std::fs;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use concertina_bench::{BenchDevice as _, CaseError, CudaError, EmulatedCuda, RealCuda};
use concertina_cuda::{Cuda, Stream};
use concertina_libcuda::DeviceConfig;
use concertina_vmm::Driver as _;
use serde::Serialize;

use crate::date::today;
use crate::error::XtaskError;

/// Which device is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MeasuredDevice {
    /// GPU 0 of this machine.
    Cuda,
    /// The emulated libcuda: figures of this host, of no GPU.
    EmulatedCuda,
}

impl MeasuredDevice {
    /// Its name on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Cuda => "cuda",
            Self::EmulatedCuda => "emulated-cuda",
        }
    }

    /// Opens it. An emulated one is made with this configuration.
    ///
    /// # Errors
    /// There is no such device.
    pub(crate) fn open(self, config: DeviceConfig) -> Result<OpenDevice, XtaskError> {
        let opened = match self {
            Self::Cuda => RealCuda::open().map(OpenDevice::Gpu),
            Self::EmulatedCuda => EmulatedCuda::to_be_measured(config).map(OpenDevice::Emulated),
        };
        Ok(opened.map_err(CaseError::Cuda)?)
    }

    /// Where files about it go if nobody says: figures of a GPU are to be kept, others are not.
    pub(crate) fn default_directory(self, root: &Path, facts: &DeviceFacts) -> PathBuf {
        match self {
            Self::Cuda => root.join(MEASUREMENTS).join(file_name(&facts.name)).join(&facts.date),
            Self::EmulatedCuda => root.join("out").join(file_name(&facts.name)),
        }
    }
}

/// Where tables of measured devices lie, from the root of the repository.
pub(crate) const MEASUREMENTS: &str = "docs/measurements";

/// A device that is open.
#[derive(Debug)]
pub(crate) enum OpenDevice {
    Gpu(RealCuda),
    Emulated(EmulatedCuda),
}

impl OpenDevice {
    pub(crate) fn cuda(&self) -> &Cuda {
        match self {
            Self::Gpu(device) => device.driver().inner(),
            Self::Emulated(device) => device.driver(),
        }
    }

    /// Two streams that nobody else uses.
    ///
    /// # Errors
    /// What the driver says.
    pub(crate) fn streams(&self) -> Result<[Stream; 2], XtaskError> {
        let stream = |number| {
            let made = match self {
                Self::Gpu(device) => device.new_stream(number),
                Self::Emulated(device) => device.new_stream(number),
            };
            made.map_err(|error| XtaskError::Measure { reason: error.to_string() })
        };
        Ok([stream(0)?, stream(1)?])
    }

    /// What was not given back, where that can be seen.
    pub(crate) fn not_given_back(&self) -> Option<String> {
        match self {
            Self::Gpu(_) => None,
            Self::Emulated(device) => device.not_given_back(),
        }
    }

    /// What it is.
    ///
    /// # Errors
    /// The driver does not tell its memory.
    pub(crate) fn facts(&self) -> Result<DeviceFacts, XtaskError> {
        let cuda = self.cuda();
        let memory = cuda.memory_info().map_err(|error| CaseError::Cuda(CudaError::Silent(error)))?;
        let probe = cuda.probe();
        let (emulated, kernel_module) = match self {
            Self::Gpu(_) => (false, kernel_module()),
            Self::Emulated(_) => (true, None),
        };
        Ok(DeviceFacts {
            name: probe.device_name.clone(),
            emulated,
            date: today(),
            driver_for_cuda: probe.driver_version.map(|version| version.to_string()),
            kernel_module,
            concertina: env!("CARGO_PKG_VERSION"),
            total_bytes: memory.total_bytes,
            free_bytes: memory.free_bytes,
            granularity_bytes: probe.granularity.map(|sizes| sizes.minimum_bytes),
            recommended_granularity_bytes: probe.granularity.map(|sizes| sizes.recommended_bytes),
            unmap_spans_mappings: probe.unmap_spans_mappings.to_string(),
            pools: probe.pools.to_string(),
            gpu_direct_rdma: probe.gpu_direct_rdma.to_string(),
            posix_fd_export: probe.posix_fd_export.to_string(),
        })
    }
}

/// What is said of a device beside every figure.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct DeviceFacts {
    /// What the driver calls it.
    pub(crate) name: String,
    /// Whether there was no device at all: the figures are of the emulation.
    pub(crate) emulated: bool,
    /// The day in UTC.
    pub(crate) date: String,
    /// The CUDA version that the driver is made for.
    pub(crate) driver_for_cuda: Option<String>,
    /// What the driver's kernel module says of itself.
    pub(crate) kernel_module: Option<String>,
    /// The version of this library.
    pub(crate) concertina: &'static str,
    /// Bytes of its memory.
    pub(crate) total_bytes: u64,
    /// Bytes that were free before.
    pub(crate) free_bytes: u64,
    /// Smallest mappable size in bytes.
    pub(crate) granularity_bytes: Option<u64>,
    /// What the driver recommends in its place.
    pub(crate) recommended_granularity_bytes: Option<u64>,
    /// One unmap may cover two mappings: yes, or why not.
    pub(crate) unmap_spans_mappings: String,
    /// The driver's pools: yes, or why not.
    pub(crate) pools: String,
    /// Access by network cards: yes, or why not.
    pub(crate) gpu_direct_rdma: String,
    /// Export as a file descriptor: yes, or why not.
    pub(crate) posix_fd_export: String,
}

/// What stands above every figure that is of no GPU.
pub(crate) const EMULATED: &str =
    "EMULATED: the figures are of the emulated libcuda on this host, of no device.";

impl DeviceFacts {
    /// Lines for the head of output and files.
    pub(crate) fn lines(&self) -> Vec<String> {
        let gib = self.total_bytes as f64 / f64::from(1 << 30);
        let cuda = self.driver_for_cuda.as_deref().unwrap_or("not told");
        let mut lines =
            vec![format!("{}, {gib:.1} GiB, driver for CUDA {cuda}, on {}", self.name, self.date)];
        lines.extend(self.kernel_module.clone());
        lines.push(format!("Concertina {}", self.concertina));
        if self.emulated {
            lines.push(EMULATED.to_owned());
        }
        lines
    }
}

/// The first line of what the kernel module of NVIDIA's driver tells on Linux.
fn kernel_module() -> Option<String> {
    let text = fs::read_to_string("/proc/driver/nvidia/version").ok()?;
    let line = text.lines().next()?.split_whitespace().collect::<Vec<_>>().join(" ");
    (!line.is_empty()).then_some(line)
}

/// A name as a file may have it: letters, digits and dots inside, all else one dash.
pub(crate) fn file_name(name: &str) -> String {
    let dashed: String = name
        .chars()
        .map(|char| if char.is_ascii_alphanumeric() || char == '.' { char.to_ascii_lowercase() } else { '-' })
        .collect();
    let words: Vec<&str> = dashed.split('-').filter(|word| !word.is_empty()).collect();
    words.join("-").trim_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::file_name;

    #[test]
    fn names_become_file_names() {
        let names = ["NVIDIA H200", "NVIDIA GeForce RTX 4090/D (x)", "../gb10", "v1.2"].map(file_name);
        assert_eq!(names, ["nvidia-h200", "nvidia-geforce-rtx-4090-d-x", "-gb10", "v1.2"]);
    }
}
