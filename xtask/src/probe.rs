//! `cargo xtask probe`: what the calls of a CUDA driver cost, measured.
//!
//! Main types: [`ProbeArgs`]. Neighbours: `concertina_bench::probe` measures; `bench --cost-table` takes the file.

use std::fs;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::{Args, ValueEnum};
use concertina_bench::cuda_device::{CudaError, EmulatedCuda, RealCuda};
use concertina_bench::probe::{Measurement, measure, to_toml};
use concertina_bench::{BenchDevice, CaseError, DeviceSpec};
use concertina_cuda::Cuda;

use crate::error::XtaskError;
use crate::figures::{self, Column, bytes, count, table};

/// Arguments of `probe`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask probe                                     this machine's GPU
  cargo xtask probe --out h200.toml --name h200         and a cost table of it, for --cost-table h200.toml
  cargo xtask probe --device emulated-cuda              the same over the emulated libcuda: how it is tested")]
pub(crate) struct ProbeArgs {
    /// The device.
    #[arg(long, value_enum, default_value_t = ProbeDevice::Cuda)]
    device: ProbeDevice,

    /// Write a cost table to this file.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// The cost table's name [default: what the driver calls the device].
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// How often each call is timed.
    #[arg(long, value_name = "N", default_value_t = 20)]
    repeat: usize,
}

/// Which device is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ProbeDevice {
    /// GPU 0 of this machine.
    Cuda,
    /// The emulated libcuda: figures of this host, of no GPU.
    EmulatedCuda,
}

/// Measures, prints a table, and writes the cost table if asked to.
///
/// # Errors
/// No such device, a call that failed, or a file that can't be written.
pub(crate) fn run(args: ProbeArgs) -> Result<(), XtaskError> {
    match args.device {
        ProbeDevice::Cuda => {
            let device = RealCuda::open().map_err(CaseError::Cuda)?;
            probe(&args, &device, device.driver().inner())
        }
        ProbeDevice::EmulatedCuda => {
            let config = DeviceSpec::default().cuda_config(0)?;
            let device = EmulatedCuda::new(config).map_err(CaseError::Cuda)?;
            probe(&args, &device, device.driver())
        }
    }
}

fn probe<D>(args: &ProbeArgs, device: &D, cuda: &Cuda) -> Result<(), XtaskError>
where
    D: BenchDevice,
    D::Driver: concertina_vmm::Driver<Stream = concertina_cuda::Stream>,
{
    let stream =
        |number| device.new_stream(number).map_err(|error| XtaskError::Probe { reason: error.to_string() });
    let streams = [stream(0)?, stream(1)?];
    let measured = measure(cuda, cuda.ordinal(), [&streams[0], &streams[1]], args.repeat);
    let measured = measured.map_err(|error| CaseError::Cuda(CudaError::Silent(error)))?;

    let mut comments =
        vec![format!("Measured by `cargo xtask probe` on {}, host time of idle calls.", today())];
    if args.device == ProbeDevice::EmulatedCuda {
        comments.push("Over the emulated libcuda: figures of a host, of no GPU.".to_owned());
    }
    comments.push(cuda.probe().to_string());
    for comment in &comments {
        println!("{comment}");
    }
    println!();
    print!("{}", text(&measured));
    if let Some(path) = &args.out {
        let name = args.name.clone().unwrap_or_else(|| cuda.probe().device_name.clone());
        let written = fs::write(path, to_toml(&measured.cost_table(&name), &comments));
        written.map_err(|source| XtaskError::io("write", path, source))?;
    }
    Ok(())
}

fn text(measured: &Measurement) -> String {
    let columns = [
        Column::left("call"),
        Column::right("size"),
        Column::right("mappings"),
        Column::right("median ns"),
        Column::right("least ns"),
        Column::right("ns/mapping"),
    ];
    let mut rows = table(&columns, 2);
    for timing in &measured.timings {
        rows.add_row([
            timing.call.name().to_owned(),
            if timing.bytes == 0 { "-".to_owned() } else { bytes(timing.bytes) },
            count(timing.mappings),
            count(timing.median_ns),
            count(timing.least_ns),
            count(timing.median_ns / timing.mappings.max(1)),
        ]);
    }
    figures::text(&rows)
}

/// The day in UTC, as 2026-01-31.
fn today() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    date_of_day(seconds / 86_400)
}

/// The date of a day counted from 1970-01-01. (Howard Hinnant, "chrono-compatible low-level date algorithms",
/// `civil_from_days`, for days from 1970 on.)
fn date_of_day(day: u64) -> String {
    let day = day + 719_468;
    let (era, of_era) = (day / 146_097, day % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{of_month:02}")
}

#[cfg(test)]
mod tests {
    use super::date_of_day;

    #[test]
    fn days_have_the_dates_of_the_calendar() {
        // By `date -u -d @…`: the epoch, a leap day of a century, the day after it, the end of a year.
        let dates = [0, 11_016, 11_017, 20_818].map(date_of_day);
        assert_eq!(dates, ["1970-01-01", "2000-02-29", "2000-03-01", "2026-12-31"]);
    }
}
