//! The flag `--emulated`: the same program on an emulated libcuda, with its kernels as closures.
//!
//! Main types: none. Neighbours: every example uses it.

#[cfg(not(target_os = "linux"))]
compile_error!(
    "the examples bring the emulated libcuda with them, which needs Linux; to run one elsewhere on a GPU, take out \
     this module and the kernels for it"
);

use std::error::Error;

use concertina_libcuda::{DeviceConfig, FreshDevice, Library, load};

/// With `--emulated` on the command line: an emulated device that has `kernels`, to be kept as long as CUDA is used. Then
/// `libcuda.so` is the emulated one for the whole process, so this comes before the first call of CUDA.
pub(crate) fn device(
    kernels: impl FnOnce(&Library) -> Result<(), Box<dyn Error>>,
) -> Result<Option<FreshDevice>, Box<dyn Error>> {
    if !std::env::args().any(|argument| argument == "--emulated") {
        return Ok(None);
    }
    let device = load()?.fresh(&DeviceConfig::default())?;
    kernels(&device)?;
    println!("on an emulated device");
    Ok(Some(device))
}

/// After everything was dropped: an error if the device still holds something.
pub(crate) fn ends_empty(device: Option<&FreshDevice>) -> Result<(), Box<dyn Error>> {
    Ok(device.map_or(Ok(()), |device| device.check_nothing_held())?)
}
