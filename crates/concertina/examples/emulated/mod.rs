//! What the examples have in common: the flag `--emulated`, for the same program on an emulated libcuda, with its kernels
//! as closures; and what is said where it fails.
//!
//! Main types: none. Neighbours: every example uses it.

#[cfg(not(target_os = "linux"))]
compile_error!(
    "the examples bring the emulated libcuda with them, which needs Linux; to run one elsewhere on a GPU, take out \
     this module and the kernels for it"
);

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

use concertina_libcuda::{DeviceConfig, Library};
use cudarc::driver::CudaContext;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// An example: `run` on GPU 0, or with `--emulated` on the command line on an emulated device that has `kernels`.
pub(crate) fn main<T>(
    kernels: impl FnOnce(&Library) -> Outcome,
    run: impl FnOnce(&Arc<CudaContext>) -> Outcome<T>,
) -> ExitCode {
    let emulated = std::env::args().any(|argument| argument == "--emulated");
    let done = if emulated { run_emulated(kernels, run) } else { run_on_gpu(run) };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run_on_gpu<T>(run: impl FnOnce(&Arc<CudaContext>) -> Outcome<T>) -> Outcome {
    // Where there is no driver: an error, not a panic of cudarc's.
    concertina::cuda::load()
        .map_err(|error| format!("{error}\nwithout a GPU: the same with `-- --emulated`"))?;
    run(&CudaContext::new(0)?).map(drop)
}

fn run_emulated<T>(
    kernels: impl FnOnce(&Library) -> Outcome,
    run: impl FnOnce(&Arc<CudaContext>) -> Outcome<T>,
) -> Outcome {
    // Before the first call of CUDA: `libcuda.so` is the emulated one then, for the whole process.
    let device = concertina_libcuda::load()?.fresh(&DeviceConfig::default())?;
    kernels(&device)?;
    println!("on an emulated device");
    run(&CudaContext::new(0)?)?;
    // Everything was dropped, and nothing came before what it should have waited for.
    device.check_nothing_held()?;
    Ok(device.check_no_races()?)
}
