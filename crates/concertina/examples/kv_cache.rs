//! A cache of keys and values for several sequences at once, as a server of a language model has one: each grows token
//! by token to a length that nobody knows before, and makes room for others when it ends. Each cache has addresses for
//! the longest sequence there may be, and memory for the tokens that it has.
//!
//! ```text
//! cargo run -p concertina --features cuda --example kv_cache                  a GPU
//! cargo run -p concertina --features cuda --example kv_cache -- --emulated    without one
//! ```

#![allow(unsafe_code, reason = "launches of kernels")]

mod emulated;

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

use concertina::cuda::{DeviceBuffer, GrowableBuffer, Memory, Stream};
use concertina_libcuda::{Launch, Library};
use cudarc::driver::{CudaContext, CudaFunction, CudaStream, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;

/// Sequences that are served at the same time.
const SLOTS: usize = 8;
/// Numbers that a token has in the cache.
const WIDTH: usize = 1024;
/// Longest sequence, in tokens.
const MAX_TOKENS: usize = 65_536;

/// `append`, one element a thread: the element `i` of tokens that begin with `first` is `(first + i / width + i % width) & 3`.
/// `attend`, one column a thread: `out[i]` is the sum over all tokens of their element `i`.
const KERNELS: &str = "
.version 6.0
.target sm_50
.address_size 64
.visible .entry append(.param .u64 x, .param .u64 n, .param .u32 first, .param .u32 width)
{
    .reg .pred %past;
    .reg .b32 %block, %threads, %thread, %i, %first, %width, %token, %column;
    .reg .b64 %x, %n, %at;
    .reg .f32 %value;
    ld.param.u64 %x, [x];
    ld.param.u64 %n, [n];
    ld.param.u32 %first, [first];
    ld.param.u32 %width, [width];
    cvta.to.global.u64 %x, %x;
    mov.u32 %block, %ctaid.x;
    mov.u32 %threads, %ntid.x;
    mov.u32 %thread, %tid.x;
    mad.lo.u32 %i, %block, %threads, %thread;
    cvt.u64.u32 %at, %i;
    setp.ge.u64 %past, %at, %n;
    @%past bra DONE;
    div.u32 %token, %i, %width;
    rem.u32 %column, %i, %width;
    add.u32 %token, %token, %first;
    add.u32 %token, %token, %column;
    and.b32 %token, %token, 3;
    cvt.rn.f32.u32 %value, %token;
    shl.b64 %at, %at, 2;
    add.u64 %x, %x, %at;
    st.global.f32 [%x], %value;
DONE:
    ret;
}
.visible .entry attend(.param .u64 x, .param .u64 tokens, .param .u64 out, .param .u32 width)
{
    .reg .pred %past;
    .reg .b32 %block, %threads, %thread, %i, %width;
    .reg .b64 %x, %tokens, %out, %at, %row;
    .reg .f32 %value, %sum;
    ld.param.u64 %x, [x];
    ld.param.u64 %tokens, [tokens];
    ld.param.u64 %out, [out];
    ld.param.u32 %width, [width];
    cvta.to.global.u64 %x, %x;
    cvta.to.global.u64 %out, %out;
    mov.u32 %block, %ctaid.x;
    mov.u32 %threads, %ntid.x;
    mov.u32 %thread, %tid.x;
    mad.lo.u32 %i, %block, %threads, %thread;
    setp.ge.u32 %past, %i, %width;
    @%past bra DONE;
    mul.wide.u32 %at, %i, 4;
    mul.wide.u32 %row, %width, 4;
    add.u64 %x, %x, %at;
    add.u64 %out, %out, %at;
    mov.f32 %sum, 0f00000000;
LOOP:
    setp.eq.u64 %past, %tokens, 0;
    @%past bra STORE;
    ld.global.f32 %value, [%x];
    add.f32 %sum, %sum, %value;
    add.u64 %x, %x, %row;
    sub.u64 %tokens, %tokens, 1;
    bra LOOP;
STORE:
    st.global.f32 [%out], %sum;
DONE:
    ret;
}
";

/// The same for the emulated device.
pub(crate) fn kernels(library: &Library) -> Result<(), Box<dyn Error>> {
    fn slice<'a>(launch: &Launch<'_>, index: usize, len: usize) -> &'a mut [f32] {
        let start = launch.pointer::<f32>(launch.parameter(index), len);
        // SAFETY: the launches give as many elements, of one buffer each, and nobody else writes them meanwhile.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }
    fn append(launch: &Launch<'_>) {
        let (n, first) = (launch.parameter::<usize>(1), launch.parameter::<u32>(2) as usize);
        let width = launch.parameter::<u32>(3) as usize;
        for (i, x) in slice(launch, 0, n).iter_mut().enumerate() {
            *x = ((first + i / width + i % width) & 3) as f32;
        }
    }
    fn attend(launch: &Launch<'_>) {
        let (tokens, width) = (launch.parameter::<usize>(1), launch.parameter::<u32>(3) as usize);
        let out = slice(launch, 2, width);
        out.fill(0.0);
        for token in slice(launch, 0, tokens * width).chunks_exact(width) {
            out.iter_mut().zip(token).for_each(|(out, x)| *out += x);
        }
    }
    let appended = |launch: &Launch<'_>| vec![launch.writes(0, 4 * launch.parameter::<u64>(1))];
    library.register_kernel_touching("append", &[8, 8, 4, 4], append, appended)?;
    let attended = |launch: &Launch<'_>| {
        let token_bytes = 4 * u64::from(launch.parameter::<u32>(3));
        vec![launch.reads(0, token_bytes * launch.parameter::<u64>(1)), launch.writes(2, token_bytes)]
    };
    Ok(library.register_kernel_touching("attend", &[8, 8, 8, 4], attend, attended)?)
}

/// What was served, and what it took.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) peak_live_bytes: u64,
    pub(crate) peak_mapped_bytes: u64,
    /// What as many buffers of the longest sequence take.
    pub(crate) preallocated_bytes: u64,
}

/// One sequence at a time, and the cache that it grows in.
struct Slot {
    cache: GrowableBuffer<f32>,
    tokens: usize,
    /// How many the sequence will have: the program doesn't look at this before it has them.
    end: usize,
}

struct Server {
    cuda_stream: Arc<CudaStream>,
    append: CudaFunction,
    attend: CudaFunction,
    sums: DeviceBuffer<f32>,
}

impl Server {
    /// Puts more tokens behind those that the slot has.
    fn append(&self, slot: &mut Slot, tokens: usize) -> Result<(), Box<dyn Error>> {
        let (start, n) = (slot.tokens * WIDTH, tokens * WIDTH);
        // SAFETY: the kernel writes them, and none is read by the host before.
        unsafe { slot.cache.try_grow_uninit(start + n) }?;
        let mut new = slot.cache.slice_mut(start..)?;
        let (first, width) = (u32::try_from(slot.tokens)?, u32::try_from(WIDTH)?);
        let mut launch = self.cuda_stream.launch_builder(&self.append);
        launch.arg(&mut new).arg(&n).arg(&first).arg(&width);
        // SAFETY: the parameters of the kernel, and the view has `n` elements.
        unsafe { launch.launch(LaunchConfig::for_num_elems(u32::try_from(n)?)) }?;
        slot.tokens += tokens;
        Ok(())
    }

    /// Reads all tokens of a slot, and checks what comes out.
    fn attend(&mut self, slot: &Slot) -> Result<(), Box<dyn Error>> {
        let width = u32::try_from(WIDTH)?;
        let mut launch = self.cuda_stream.launch_builder(&self.attend);
        launch.arg(&*slot.cache).arg(&slot.tokens).arg(&mut self.sums).arg(&width);
        // SAFETY: the parameters of the kernel; the cache has `tokens` rows of `width`, and so many sums there are.
        unsafe { launch.launch(LaunchConfig::for_num_elems(width)) }?;
        for (column, sum) in self.sums.to_vec()?.into_iter().enumerate() {
            let expected: usize = (0..slot.tokens).map(|token| (token + column) & 3).sum();
            if sum != expected as f32 {
                return Err(
                    format!("{} tokens: column {column} is {sum}, not {expected}", slot.tokens).into()
                );
            }
        }
        Ok(())
    }
}

/// A number from `least` to `most`, by the generator of Numerical Recipes.
fn draw(state: &mut u32, least: usize, most: usize) -> usize {
    *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    least + (*state >> 8) as usize % (most - least + 1)
}

fn new_slot(stream: &Stream) -> Result<Slot, Box<dyn Error>> {
    // Addresses only, as for all that a sequence may ever need.
    let cache = GrowableBuffer::try_with_max_len(stream, MAX_TOKENS * WIDTH)?;
    Ok(Slot { cache, tokens: 0, end: 0 })
}

/// Serves so many sequences, eight at a time.
pub(crate) fn run(context: &Arc<CudaContext>, sequences: usize) -> Result<Served, Box<dyn Error>> {
    let cuda_stream = context.new_stream()?;
    let module = context.load_module(Ptx::from_src(KERNELS))?;
    let memory = Memory::new(context)?;
    let stream = memory.stream(&cuda_stream)?;
    let mut server = Server {
        append: module.load_function("append")?,
        attend: module.load_function("attend")?,
        sums: DeviceBuffer::try_zeroed(&stream, WIDTH)?,
        cuda_stream,
    };
    let mut slots = (0..SLOTS).map(|_| new_slot(&stream)).collect::<Result<Vec<_>, _>>()?;
    let addresses: Vec<_> = slots.iter().map(|slot| slot.cache.address()).collect();

    let (mut state, mut begun, mut tokens) = (1_u32, 0, 0);
    loop {
        let mut busy = false;
        for slot in &mut slots {
            if slot.tokens < slot.end {
                server.append(slot, 1)?;
            } else {
                if slot.end > 0 {
                    server.attend(slot)?;
                    tokens += slot.tokens;
                    // The tokens go, and their memory serves the other sequences; the addresses stay.
                    slot.cache.clear();
                    (slot.tokens, slot.end) = (0, 0);
                }
                if begun == sequences {
                    continue;
                }
                // The next one begins with a prompt.
                begun += 1;
                let prompt = draw(&mut state, 1, 1_500);
                slot.end = prompt + draw(&mut state, 1, 400);
                server.append(slot, prompt)?;
            }
            busy = true;
        }
        if !busy {
            break;
        }
    }

    if slots.iter().map(|slot| slot.cache.address()).ne(addresses) {
        return Err("a cache has moved".into());
    }
    let stats = memory.allocator().stats();
    let served = Served {
        peak_live_bytes: stats.live_peak_bytes,
        peak_mapped_bytes: stats.mapped_peak_bytes,
        preallocated_bytes: (SLOTS * MAX_TOKENS * WIDTH * size_of::<f32>()) as u64,
    };
    println!("{sequences} sequences of {tokens} tokens, {SLOTS} at a time: all sums are right");
    println!(
        "at most {} MiB were live at once, and {} MiB mapped; preallocated, the caches take {} MiB",
        served.peak_live_bytes >> 20,
        served.peak_mapped_bytes >> 20,
        served.preallocated_bytes >> 20
    );
    Ok(served)
}

#[allow(dead_code, reason = "the tests call `run`")]
fn main() -> ExitCode {
    emulated::main(kernels, |context| run(context, 100))
}
