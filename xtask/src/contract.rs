//! `cargo xtask contract`: the contract of the driver traits on a CUDA device.
//!
//! Main types: [`ContractArgs`]. Neighbours: `concertina_vmm::contract` has the cases; tests run the same ones over the
//! emulator and the emulated libcuda; `gpu` runs this command.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use clap::Args;
use concertina_cuda::Cuda;
use concertina_libcuda::DeviceConfig;
use concertina_vmm::contract::{Case, ContractSetup, cases};
use concertina_vmm::{Driver as _, DriverErrorKind};
use serde::Serialize;

use crate::bench::shortened;
use crate::error::XtaskError;
use crate::measured_device::{MeasuredDevice, OpenDevice};

/// Arguments of `contract`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask contract                            on this machine's GPU, used by nothing else
  cargo xtask contract --device emulated-cuda     over the emulated libcuda
  cargo xtask contract --json out/contract.json   the outcomes as JSON, too")]
pub(crate) struct ContractArgs {
    /// The device.
    #[arg(long, value_enum, default_value_t = MeasuredDevice::Cuda)]
    device: MeasuredDevice,

    /// Write the outcomes to this file as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// How one case went.
#[derive(Debug, Serialize)]
struct Outcome {
    case: &'static str,
    passed: bool,
    /// What broke it.
    error: Option<String>,
}

/// Memory of an emulated device: each case gets a new one.
const CAPACITY_BYTES: u64 = 1 << 30;

/// Runs every case, and prints each.
///
/// # Errors
/// No such device, a file that can't be written, or cases that failed.
pub(crate) fn run(args: ContractArgs) -> Result<(), XtaskError> {
    let config = || DeviceConfig::default().with_capacity(CAPACITY_BYTES);
    let mut device = Some(args.device.open(config())?);
    let mut outcomes = Vec::new();
    for case in cases::<Cuda>() {
        // A GPU is there once; an emulated device is new for each case, and must be empty at its end.
        let open = match (args.device, device.take()) {
            (_, Some(open)) => open,
            (device, None) => device.open(config())?,
        };
        let outcome = run_case(&case, &open)?;
        println!("{} {}", if outcome.passed { "passed" } else { "FAILED" }, outcome.case);
        if let Some(error) = &outcome.error {
            println!("       {}", shortened(error, 93));
        }
        outcomes.push(outcome);
        if args.device == MeasuredDevice::Cuda {
            if is_lost(open.cuda()) {
                println!("the device is lost; the other cases were not run");
                break;
            }
            device = Some(open);
        }
    }
    let failed = outcomes.iter().filter(|outcome| !outcome.passed).count();
    let not_run = cases::<Cuda>().len() - outcomes.len();
    println!("{} cases passed, {failed} failed, {not_run} not run", outcomes.len() - failed);
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&outcomes).map_err(std::io::Error::from);
        let written = text.and_then(|text| fs::write(path, text + "\n"));
        written.map_err(|source| XtaskError::io("write", path, source))?;
    }
    match failed + not_run {
        0 => Ok(()),
        cases => Err(XtaskError::Contract { cases }),
    }
}

fn run_case(case: &Case<Cuda>, device: &OpenDevice) -> Result<Outcome, XtaskError> {
    let streams = device.streams()?;
    let setup = ContractSetup { driver: device.cuda().clone(), device: device.cuda().ordinal(), streams };
    // A case that is broken panics; what it says is told in our own way.
    let said = Arc::new(Mutex::new(None));
    let hook = take_hook();
    let hears = Arc::clone(&said);
    set_hook(Box::new(move |panic| {
        let text = panic.to_string().lines().skip(1).collect::<Vec<_>>().join(" ");
        *hears.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
    }));
    let broken = catch_unwind(AssertUnwindSafe(|| (case.run)(&setup))).is_err();
    set_hook(hook);
    drop(setup);
    let said = said.lock().unwrap_or_else(PoisonError::into_inner).take();
    let error = if broken { said.or_else(|| Some("a panic".to_owned())) } else { device.not_given_back() };
    Ok(Outcome { case: case.name, passed: error.is_none(), error })
}

fn is_lost(cuda: &Cuda) -> bool {
    cuda.memory_info().is_err_and(|error| error.kind == DriverErrorKind::Lost)
}
