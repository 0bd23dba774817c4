//! A cudarc program that runs without a GPU: the emulated driver is opened before the first call of CUDA.
//!
//! Main types: none. Neighbours: `docs/libcuda.md` explains it. Run it with
//! `cargo run -p concertina-libcuda --example saxpy`.

#![allow(unsafe_code, reason = "a launch, and a kernel that follows device addresses")]

use concertina_libcuda::{DeviceConfig, Launch, load};
use cudarc::driver::{CudaContext, DriverError, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;

/// The program under test: what it would be on a GPU, with the text of a real module.
fn saxpy(module: &str, a: f32, x: &[f32], y: &[f32]) -> Result<Vec<f32>, DriverError> {
    let context = CudaContext::new(0)?;
    let stream = context.new_stream()?;
    let kernel = context.load_module(Ptx::from_src(module))?.load_function("saxpy")?;
    let on_device = stream.clone_htod(x)?;
    let mut sum = stream.clone_htod(y)?;
    let count = x.len();
    let shape = LaunchConfig::for_num_elems(count as u32);
    // SAFETY: the parameters are the kernel's, and both buffers have `count` elements.
    unsafe {
        stream.launch_builder(&kernel).arg(&a).arg(&on_device).arg(&mut sum).arg(&count).launch(shape)
    }?;
    stream.clone_dtoh(&sum)
}

/// What the module's kernel does, in Rust: `y[i] += a * x[i]`.
fn saxpy_on_the_host(launch: &Launch<'_>) {
    let (a, count) = (launch.parameter::<f32>(0), launch.parameter::<usize>(3));
    let x = launch.pointer::<f32>(launch.parameter(1), count);
    let y = launch.pointer::<f32>(launch.parameter(2), count);
    for index in 0..count {
        // SAFETY: the program gives `count` elements. If it were wrong, this would fault as a kernel does.
        let product = a * unsafe { x.wrapping_add(index).read() };
        // SAFETY: as above.
        unsafe { *y.wrapping_add(index) += product };
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // These lines, and the checks at the end, are all that the emulation takes.
    let device = load()?.fresh(&DeviceConfig::default().with_capacity(1 << 30))?;
    let sizes = [size_of::<f32>(), size_of::<u64>(), size_of::<u64>(), size_of::<usize>()];
    // What it touches: for the race detector.
    let accesses = |launch: &Launch<'_>| {
        let bytes = 4 * launch.parameter::<u64>(3);
        vec![launch.reads(1, bytes), launch.writes(2, bytes)]
    };
    device.register_kernel_touching("saxpy", &sizes, saxpy_on_the_host, accesses)?;

    let x: Vec<f32> = (0..1000_u16).map(f32::from).collect();
    let sum = saxpy("the module's text is not read here", 2.0, &x, &vec![1.0; x.len()])?;
    assert!(sum.iter().zip(&x).all(|(&sum, &x)| sum == 2.0 * x + 1.0));

    let counts = device.counts(0)?;
    println!("1000 sums are right; at most {} bytes were mapped", counts.mapped_peak_bytes());
    println!("launches: {}, held at the end: {}", device.calls("cuLaunchKernel")?, device.held(0)?);
    device.check_nothing_held()?;
    device.check_no_races()?;
    Ok(())
}
