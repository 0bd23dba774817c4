//! A line of threads, each with a stream of its own: a batch is made by the first, goes through a kernel in each of the
//! next ones, and is checked by the last. Buffers go from thread to thread through channels, are read on another stream
//! than the one they were made on, and are dropped by another thread than the one that made them.
//!
//! ```text
//! cargo run -p concertina --features cuda --example threads                  a GPU
//! cargo run -p concertina --features cuda --example threads -- --emulated    without one
//! ```

#![allow(unsafe_code, reason = "launches of kernels")]

mod emulated;

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use concertina::cuda::{DeviceBuffer, Memory};
use concertina_libcuda::{Launch, Library};
use cudarc::driver::{CudaContext, CudaFunction, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;

/// `to[i] = factor from[i] + summand`, one element a thread.
const STAGE: &str = "
.version 6.0
.target sm_50
.address_size 64
.visible .entry stage(.param .u64 to, .param .u64 from, .param .u64 n, .param .u32 factor, .param .u32 summand)
{
    .reg .pred %past;
    .reg .b32 %block, %threads, %thread, %factor, %summand, %value;
    .reg .b64 %to, %from, %n, %i;
    ld.param.u64 %to, [to];
    ld.param.u64 %from, [from];
    ld.param.u64 %n, [n];
    ld.param.u32 %factor, [factor];
    ld.param.u32 %summand, [summand];
    cvta.to.global.u64 %to, %to;
    cvta.to.global.u64 %from, %from;
    mov.u32 %block, %ctaid.x;
    mov.u32 %threads, %ntid.x;
    mov.u32 %thread, %tid.x;
    cvt.u64.u32 %i, %thread;
    mad.wide.u32 %i, %block, %threads, %i;
    setp.ge.u64 %past, %i, %n;
    @%past bra DONE;
    shl.b64 %i, %i, 2;
    add.u64 %to, %to, %i;
    add.u64 %from, %from, %i;
    ld.global.u32 %value, [%from];
    mad.lo.u32 %value, %value, %factor, %summand;
    st.global.u32 [%to], %value;
DONE:
    ret;
}
";

/// The same for the emulated device: all elements at once.
pub(crate) fn kernels(library: &Library) -> Result<(), Box<dyn Error>> {
    fn stage(launch: &Launch<'_>) {
        let n = launch.parameter::<usize>(2);
        let (factor, summand) = (launch.parameter::<u32>(3), launch.parameter::<u32>(4));
        let elements = |index| {
            let start = launch.pointer::<u32>(launch.parameter(index), n);
            // SAFETY: the launch gives `n` elements of two buffers, and nobody else writes them meanwhile.
            unsafe { std::slice::from_raw_parts_mut(start, n) }
        };
        for (to, from) in elements(0).iter_mut().zip(elements(1)) {
            *to = from.wrapping_mul(factor).wrapping_add(summand);
        }
    }
    let accesses = |launch: &Launch<'_>| {
        let bytes = 4 * launch.parameter::<u64>(2);
        vec![launch.writes(0, bytes), launch.reads(1, bytes)]
    };
    Ok(library.register_kernel_touching("stage", &[8, 8, 8, 4, 4], stage, accesses)?)
}

/// Errors go from thread to thread, too.
type Failure = Box<dyn Error + Send + Sync>;
type Batch = DeviceBuffer<u32>;

/// Threads in the middle.
const STAGES: u32 = 4;

const fn factor(stage: u32) -> u32 {
    2 * stage + 3
}

/// Batches have different lengths, of 0.2 to 3 MB.
const fn len(batch: u32) -> usize {
    50_000 + (batch as usize * 37) % 100 * 7_000
}

const fn start(batch: u32, index: u32) -> u32 {
    batch.wrapping_mul(1_000_003).wrapping_add(index)
}

fn first(
    context: &Arc<CudaContext>,
    memory: &Memory,
    batches: u32,
    next: &SyncSender<Batch>,
) -> Result<(), Failure> {
    let cuda_stream = context.new_stream()?;
    let stream = memory.stream(&cuda_stream)?;
    for batch in 0..batches {
        let elements: Vec<u32> = (0..len(batch) as u32).map(|index| start(batch, index)).collect();
        // Where the next thread has gone, its own error says why.
        if next.send(DeviceBuffer::try_from_slice(&stream, &elements)?).is_err() {
            break;
        }
    }
    Ok(())
}

fn middle(
    context: &Arc<CudaContext>,
    memory: &Memory,
    kernel: &CudaFunction,
    stage: u32,
    before: &Receiver<Batch>,
    next: &SyncSender<Batch>,
) -> Result<(), Failure> {
    let cuda_stream = context.new_stream()?;
    let stream = memory.stream(&cuda_stream)?;
    for batch in before {
        let n = batch.len();
        // SAFETY: the kernel writes all of it.
        let mut result = unsafe { DeviceBuffer::<u32>::try_uninit(&stream, n) }?;
        // The batch was made on the stream of the thread before: the guard puts this stream behind what is queued
        // there.
        let guard = batch.on(&stream)?;
        let mut launch = cuda_stream.launch_builder(kernel);
        launch.arg(&mut result).arg(&guard).arg(&n);
        let (factor, shape) = (factor(stage), LaunchConfig::for_num_elems(u32::try_from(n)?));
        // SAFETY: the parameters of the kernel, and both buffers have `n` elements.
        unsafe { launch.arg(&factor).arg(&stage).launch(shape) }?;
        drop(guard);
        // Freed by this thread, in the order of its own stream, and not used again before this kernel has read it.
        drop(batch);
        if next.send(result).is_err() {
            break;
        }
    }
    Ok(())
}

fn last(before: &Receiver<Batch>) -> Result<u32, Failure> {
    let mut batches = 0;
    for batch in before {
        for (index, &value) in (0..).zip(&batch.to_vec()?) {
            let step = |value: u32, stage| value.wrapping_mul(factor(stage)).wrapping_add(stage);
            let expected = (0..STAGES).fold(start(batches, index), step);
            if value != expected {
                return Err(format!("element {index} of batch {batches} is {value}, not {expected}").into());
            }
        }
        batches += 1;
    }
    Ok(batches)
}

/// Sends so many batches through the line.
pub(crate) fn run(context: &Arc<CudaContext>, batches: u32) -> Result<(), Box<dyn Error>> {
    let memory = Memory::new(context)?;
    let kernel = context.load_module(Ptx::from_src(STAGE))?.load_function("stage")?;
    let done = thread::scope(|scope| {
        let (memory, kernel) = (&memory, &kernel);
        let (next, mut before) = sync_channel(2);
        let mut threads = vec![scope.spawn(move || first(context, memory, batches, &next))];
        for stage in 0..STAGES {
            let (next, after) = sync_channel(2);
            let from = std::mem::replace(&mut before, after);
            threads.push(scope.spawn(move || middle(context, memory, kernel, stage, &from, &next)));
        }
        let done = last(&before);
        // Whoever still sends sees that nobody takes it.
        drop(before);
        for thread in threads {
            thread.join().map_err(|_| "a thread panicked")??;
        }
        done
    });
    let done = done.map_err(|failure| -> Box<dyn Error> { failure })?;
    if done != batches {
        return Err(format!("{done} batches of {batches} came through").into());
    }
    let stats = memory.allocator().stats();
    println!("{batches} batches went through {STAGES} threads and are right");
    let (peak, mapped) = (stats.live_peak_bytes, stats.mapped_peak_bytes);
    println!("at most {peak} bytes were live at once, and {mapped} mapped");
    Ok(memory.close()?)
}

#[allow(dead_code, reason = "the tests call `run`")]
fn main() -> ExitCode {
    emulated::main(kernels, |context| run(context, 200))
}
