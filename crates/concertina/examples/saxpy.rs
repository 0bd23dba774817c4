//! `y = a x + y` by a kernel, twice: on the stream that owns the buffers, and on another one through guards.
//!
//! ```text
//! cargo run -p concertina --features cuda --example saxpy                  a GPU
//! cargo run -p concertina --features cuda --example saxpy -- --emulated    without one
//! ```

#![allow(unsafe_code, reason = "launches of kernels")]

mod emulated;

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

use concertina::cuda::{DeviceBuffer, Memory};
use concertina_libcuda::{Launch, Library};
use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;

/// One element a thread.
const SAXPY: &str = "
.version 6.0
.target sm_50
.address_size 64
.visible .entry saxpy(.param .f32 a, .param .u64 x, .param .u64 y, .param .u64 n)
{
    .reg .pred %past;
    .reg .b32 %block, %threads, %thread;
    .reg .b64 %x, %y, %n, %i;
    .reg .f32 %a, %xi, %yi;
    ld.param.f32 %a, [a];
    ld.param.u64 %x, [x];
    ld.param.u64 %y, [y];
    ld.param.u64 %n, [n];
    cvta.to.global.u64 %x, %x;
    cvta.to.global.u64 %y, %y;
    mov.u32 %block, %ctaid.x;
    mov.u32 %threads, %ntid.x;
    mov.u32 %thread, %tid.x;
    cvt.u64.u32 %i, %thread;
    mad.wide.u32 %i, %block, %threads, %i;
    setp.ge.u64 %past, %i, %n;
    @%past bra DONE;
    shl.b64 %i, %i, 2;
    add.u64 %x, %x, %i;
    add.u64 %y, %y, %i;
    ld.global.f32 %xi, [%x];
    ld.global.f32 %yi, [%y];
    fma.rn.f32 %yi, %a, %xi, %yi;
    st.global.f32 [%y], %yi;
DONE:
    ret;
}
";

/// The same for the emulated device: all elements at once.
pub(crate) fn kernels(library: &Library) -> Result<(), Box<dyn Error>> {
    fn saxpy(launch: &Launch<'_>) {
        let (a, n) = (launch.parameter::<f32>(0), launch.parameter::<usize>(3));
        let elements = |index| {
            let start = launch.pointer::<f32>(launch.parameter(index), n);
            // SAFETY: the launch gives `n` elements of two buffers, and nobody else writes them meanwhile.
            unsafe { std::slice::from_raw_parts_mut(start, n) }
        };
        for (y, x) in elements(2).iter_mut().zip(elements(1)) {
            *y = a.mul_add(*x, *y);
        }
    }
    // Which device memory a launch touches, so that a missing wait between streams is found.
    let accesses = |launch: &Launch<'_>| {
        let bytes = 4 * launch.parameter::<u64>(3);
        vec![launch.reads(1, bytes), launch.writes(2, bytes)]
    };
    Ok(library.register_kernel_touching("saxpy", &[4, 8, 8, 8], saxpy, accesses)?)
}

/// `a x + y` and then `b x` more, on two streams.
pub(crate) fn run(context: &Arc<CudaContext>, n: usize) -> Result<(), Box<dyn Error>> {
    let (cuda_stream, other_stream) = (context.new_stream()?, context.new_stream()?);
    let saxpy = context.load_module(Ptx::from_src(SAXPY))?.load_function("saxpy")?;

    let memory = Memory::new(context)?;
    let stream = memory.stream(&cuda_stream)?;
    let other = memory.stream(&other_stream)?;

    let host_x: Vec<f32> = (0..n).map(|i| (i % 1000) as f32).collect();
    let x = DeviceBuffer::try_from_slice(&stream, &host_x)?;
    let mut y = DeviceBuffer::try_from_slice(&stream, &vec![1.0_f32; n])?;
    let shape = LaunchConfig::for_num_elems(u32::try_from(n)?);

    // On the stream that the buffers are of.
    // SAFETY: the parameters of the kernel, and both buffers have `n` elements.
    unsafe { cuda_stream.launch_builder(&saxpy).arg(&2.0_f32).arg(&x).arg(&mut y).arg(&n).launch(shape) }?;
    {
        let (x, mut y) = (x.on(&other)?, y.on_mut(&other)?);
        let mut launch = other_stream.launch_builder(&saxpy);
        // SAFETY: as above; the guards put the other stream behind the first.
        unsafe { launch.arg(&4.0_f32).arg(&x).arg(&mut y).arg(&n).launch(shape) }?;
    }

    // Read on the first stream again: it comes after the other one.
    let sums = y.to_vec()?;
    for (i, (&sum, &x)) in sums.iter().zip(&host_x).enumerate() {
        let expected = 6.0 * x + 1.0;
        if sum != expected {
            return Err(format!("element {i} is {sum}, not {expected}").into());
        }
    }
    println!("{n} elements are 2 x + 4 x + 1, the last {}", sums.last().copied().unwrap_or_default());
    println!("{} MiB of device memory mapped", memory.allocator().stats().mapped_bytes >> 20);
    Ok(())
}

#[allow(dead_code, reason = "the tests call `run`")]
fn main() -> ExitCode {
    emulated::main(kernels, |context| run(context, 3_000_000))
}
