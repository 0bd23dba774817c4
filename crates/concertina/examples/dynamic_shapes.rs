//! A training loop whose batches have another length each time: a line is fitted to points by gradient descent, with
//! buffers made and dropped in every step. Memory stays at what the largest steps need.
//!
//! ```text
//! cargo run -p concertina --features cuda --example dynamic_shapes                  a GPU
//! cargo run -p concertina --features cuda --example dynamic_shapes -- --emulated    without one
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

/// One step, by one thread: `residual[i] = w[0] x[i] + w[1] - y[i]`, and `w` goes down the mean gradient.
const STEP: &str = "
.version 6.0
.target sm_50
.address_size 64
.visible .entry step(.param .u64 w, .param .u64 x, .param .u64 y, .param .u64 residual, .param .u64 n, .param .f32 rate)
{
    .reg .pred %past;
    .reg .b64 %w, %x, %y, %r, %n, %i;
    .reg .f32 %slope, %offset, %xi, %yi, %ri, %dslope, %doffset, %rate, %count;
    ld.param.u64 %w, [w];
    ld.param.u64 %x, [x];
    ld.param.u64 %y, [y];
    ld.param.u64 %r, [residual];
    ld.param.u64 %n, [n];
    ld.param.f32 %rate, [rate];
    cvta.to.global.u64 %w, %w;
    cvta.to.global.u64 %x, %x;
    cvta.to.global.u64 %y, %y;
    cvta.to.global.u64 %r, %r;
    ld.global.f32 %slope, [%w];
    ld.global.f32 %offset, [%w+4];
    mov.f32 %dslope, 0f00000000;
    mov.f32 %doffset, 0f00000000;
    cvt.rn.f32.u64 %count, %n;
    mov.u64 %i, 0;
LOOP:
    setp.ge.u64 %past, %i, %n;
    @%past bra DONE;
    ld.global.f32 %xi, [%x];
    ld.global.f32 %yi, [%y];
    fma.rn.f32 %ri, %slope, %xi, %offset;
    sub.f32 %ri, %ri, %yi;
    st.global.f32 [%r], %ri;
    fma.rn.f32 %dslope, %ri, %xi, %dslope;
    add.f32 %doffset, %doffset, %ri;
    add.u64 %x, %x, 4;
    add.u64 %y, %y, 4;
    add.u64 %r, %r, 4;
    add.u64 %i, %i, 1;
    bra LOOP;
DONE:
    div.rn.f32 %rate, %rate, %count;
    neg.f32 %rate, %rate;
    fma.rn.f32 %slope, %rate, %dslope, %slope;
    fma.rn.f32 %offset, %rate, %doffset, %offset;
    st.global.f32 [%w], %slope;
    st.global.f32 [%w+4], %offset;
    ret;
}
";

/// The same for the emulated device.
pub(crate) fn kernels(library: &Library) -> Result<(), Box<dyn Error>> {
    fn step(launch: &Launch<'_>) {
        let (n, rate) = (launch.parameter::<usize>(4), launch.parameter::<f32>(5));
        let slice = |index, len| {
            let start = launch.pointer::<f32>(launch.parameter(index), len);
            // SAFETY: the launch gives as many elements, of four buffers, and nobody else has them meanwhile.
            unsafe { std::slice::from_raw_parts_mut(start, len) }
        };
        let (w, x, y, residual) = (slice(0, 2), slice(1, n), slice(2, n), slice(3, n));
        let mut gradient = [0.0_f32; 2];
        for i in 0..n {
            residual[i] = w[0].mul_add(x[i], w[1]) - y[i];
            gradient[0] = residual[i].mul_add(x[i], gradient[0]);
            gradient[1] += residual[i];
        }
        let rate = -(rate / n as f32);
        w[0] = rate.mul_add(gradient[0], w[0]);
        w[1] = rate.mul_add(gradient[1], w[1]);
    }
    let accesses = |launch: &Launch<'_>| {
        let bytes = 4 * launch.parameter::<u64>(4);
        vec![launch.writes(0, 8), launch.reads(1, bytes), launch.reads(2, bytes), launch.writes(3, bytes)]
    };
    Ok(library.register_kernel_touching("step", &[8, 8, 8, 8, 8, 4], step, accesses)?)
}

/// What was learned, and what it took.
#[derive(Debug)]
pub(crate) struct Trained {
    pub(crate) weights: Vec<f32>,
    pub(crate) peak_live_bytes: u64,
    pub(crate) peak_mapped_bytes: u64,
}

const SLOPE: f32 = 3.0;
const OFFSET: f32 = -2.0;

/// Fits points of a known line, `steps` times, each time another number of them.
pub(crate) fn run(context: &Arc<CudaContext>, steps: u32) -> Result<Trained, Box<dyn Error>> {
    let cuda_stream = context.new_stream()?;
    let step = context.load_module(Ptx::from_src(STEP))?.load_function("step")?;
    let memory = Memory::new(context)?;
    let stream = memory.stream(&cuda_stream)?;
    let one_thread = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };

    let mut weights = DeviceBuffer::<f32>::try_zeroed(&stream, 2)?;
    let mut state = 1_u32;
    for _ in 0..steps {
        // 1,000 to 9,191 points, and an activation of 512 times as many bytes beside them.
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let n = 1_000 + (state >> 19) as usize;
        let host_x: Vec<f32> = (0..n).map(|i| (i as f32 / n as f32).mul_add(2.0, -1.0)).collect();
        let host_y: Vec<f32> = host_x.iter().map(|x| SLOPE.mul_add(*x, OFFSET)).collect();
        let x = DeviceBuffer::try_from_slice(&stream, &host_x)?;
        let y = DeviceBuffer::try_from_slice(&stream, &host_y)?;
        // SAFETY: nobody reads it.
        let _activation = unsafe { DeviceBuffer::<u8>::try_uninit(&stream, 512 * n) }?;
        let mut residual = DeviceBuffer::<f32>::try_zeroed(&stream, n)?;
        let mut launch = cuda_stream.launch_builder(&step);
        launch.arg(&mut weights).arg(&x).arg(&y).arg(&mut residual).arg(&n).arg(&1.0_f32);
        // SAFETY: the parameters of the kernel, and the buffers have 2 and `n` elements.
        unsafe { launch.launch(one_thread) }?;
        // All but the weights are freed here, in the order of the stream: the kernel still has them.
    }

    let weights = weights.to_vec()?;
    let stats = memory.allocator().stats();
    let trained = Trained {
        weights,
        peak_live_bytes: stats.live_peak_bytes,
        peak_mapped_bytes: stats.mapped_peak_bytes,
    };
    for (learned, expected) in trained.weights.iter().zip([SLOPE, OFFSET]) {
        if (learned - expected).abs() > 1e-3 {
            return Err(format!("learned {learned} in place of {expected}").into());
        }
    }
    println!("learned {:?} from {steps} batches of different lengths", trained.weights);
    let (live, mapped) = (trained.peak_live_bytes, trained.peak_mapped_bytes);
    println!("at most {live} bytes were live at once, and {mapped} mapped");
    Ok(trained)
}

#[allow(dead_code, reason = "the tests call `run`")]
fn main() -> ExitCode {
    emulated::main(kernels, |context| run(context, 200))
}
