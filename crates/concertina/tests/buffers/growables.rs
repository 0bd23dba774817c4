//! Growable buffers: what is in them survives growth and shrink, what is cut off serves others, and streams stay in
//! order.
//!
//! Main types: none. Neighbours: `crates/concertina/tests/programs/growables.rs` has the memory behind them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use concertina::cuda::{BufferError, Cuda, DeviceBuffer, Error, GrowableBuffer, Memory, Stream};
use concertina::{Config, RequestError};
use concertina_libcuda::{AccessKind, Code, DeviceConfig, load};
use cudarc::driver::{CudaContext, CudaFunction, CudaStream, DeviceSlice, PushKernelArg};
use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, TestRunner};

use crate::{Flag, Gate, Machine, PAGE, SHAPE};

#[test]
fn elements_stay_where_they_are_through_growth_and_shrink() {
    let machine = Machine::new();
    let memory = machine.memory();
    let stream = memory.stream(&machine.stream()).unwrap();
    let mut log = GrowableBuffer::<u32>::try_with_max_len(&stream, 10_000_000).unwrap();
    assert_eq!((log.len(), log.max_len(), log.bytes(), log.is_empty()), (0, 10_000_000, 0, true));
    assert_eq!(log.to_vec().unwrap(), Vec::<u32>::new());
    assert_eq!(memory.allocator().stats().mapped_bytes, 0);
    let address = log.address();
    log.try_extend_from_slice(&[1, 2, 3]).unwrap();
    log.try_grow_to(5).unwrap();
    assert_eq!(log.to_vec().unwrap(), [1, 2, 3, 0, 0]);
    log.copy_from_slice(&[5, 6, 7, 8, 9]).unwrap();
    // Whatever was cut off is gone: what comes back is zero.
    log.shrink_to(2);
    log.try_grow_to(4).unwrap();
    assert_eq!(log.to_vec().unwrap(), [5, 6, 0, 0]);
    let many: Vec<u32> = (0..3_000_000).collect();
    log.try_extend_from_slice(&many).unwrap();
    assert_eq!(log.slice(4..).unwrap().len(), 3_000_000);
    assert!(log.to_vec().unwrap()[4..] == many);
    assert_eq!((log.address(), log.bytes()), (address, 12_000_016));
    assert_eq!(memory.allocator().stats().live_bytes, 12_000_016);
    log.try_grow_to(3).unwrap();
    log.try_extend_from_slice(&[]).unwrap();
    assert_eq!(log.len(), 3_000_004, "neither shorter nor longer");
    log.clear();
    assert_eq!((log.len(), log.address(), memory.allocator().stats().live_bytes), (0, address, 0));
    log.try_grow_to(1_000).unwrap();
    assert_eq!(log.to_vec().unwrap(), [0; 1_000]);
    drop((log, stream));
    machine.ends_empty(memory);
}

/// Functions for buffers take it; kernels and cudarc's copies, too.
#[test]
fn it_is_an_argument_wherever_a_buffer_is() {
    let machine = Machine::new();
    let memory = machine.memory();
    let (cuda_stream, other) = (machine.stream(), machine.stream());
    let (stream, other_stream) = (memory.stream(&cuda_stream).unwrap(), memory.stream(&other).unwrap());
    let mut log = GrowableBuffer::<u32>::try_with_max_len(&stream, 1_000).unwrap();
    log.try_grow_to(8).unwrap();
    let [one, two, three] = [1, 2, 3].map(|value| machine.fill(value, &Flag::default()).0);
    // SAFETY: these are the parameters that were registered, here and below.
    unsafe { cuda_stream.launch_builder(&one).arg(&mut log).arg(&8_usize).launch(SHAPE) }.unwrap();
    let mut part = log.slice_mut(2..6).unwrap();
    // SAFETY: as above.
    unsafe { cuda_stream.launch_builder(&two).arg(&mut part).arg(&4_usize).launch(SHAPE) }.unwrap();
    let mut guard = log.on_mut(&other_stream).unwrap();
    // SAFETY: as above.
    unsafe { other.launch_builder(&three).arg(&mut guard).arg(&1_usize).launch(SHAPE) }.unwrap();
    drop(guard);
    fn sum(buffer: &DeviceBuffer<u32>) -> u32 {
        buffer.to_vec().unwrap().iter().sum()
    }
    assert_eq!(sum(&log), 3 + 1 + 4 * 2 + 2);
    assert_eq!(other.clone_dtoh(&log).unwrap(), [3, 1, 2, 2, 2, 2, 1, 1]);
    cuda_stream.memcpy_htod(&[7; 8], &mut log).unwrap();
    let mut copy = DeviceBuffer::<u32>::try_zeroed(&stream, 8).unwrap();
    cuda_stream.memcpy_dtod(&log, &mut copy).unwrap();
    cuda_stream.memset_zeros(&mut log).unwrap();
    assert_eq!((copy.to_vec().unwrap(), log.to_vec().unwrap()), (vec![7; 8], vec![0; 8]));
    assert!(Arc::ptr_eq(DeviceSlice::stream(&log), &cuda_stream));
    assert_eq!(DeviceSlice::len(&log), 8);
    drop((log, copy, stream, other_stream, cuda_stream, other, one, two, three));
    machine.ends_empty(memory);
}

/// A reader elsewhere that is late has the elements that were there when it was queued, whatever the buffer does next
/// and whoever gets its memory.
#[test]
fn a_late_reader_elsewhere_has_what_was_cut_off() {
    for len in [100, 3 * PAGE as usize / 4] {
        let machine = Machine::of_pages(4);
        let memory = machine.memory();
        let (cuda_stream, other) = (machine.stream(), machine.stream());
        let (stream, other_stream) = (memory.stream(&cuda_stream).unwrap(), memory.stream(&other).unwrap());
        let gate = Gate::default();
        let (late_sum, sum, read) = machine.late_sum(&gate);
        let mut log = GrowableBuffer::<u32>::try_with_max_len(&stream, len).unwrap();
        log.try_extend_from_slice(&vec![1; len]).unwrap();
        let guard = log.on(&other_stream).unwrap();
        // SAFETY: these are the parameters that were registered, here and below.
        unsafe { other.launch_builder(&late_sum).arg(&guard).arg(&len).launch(SHAPE) }.unwrap();
        drop(guard);
        // In the same step, and over pages. Neither waits.
        log.shrink_to(3);
        log.try_grow_to(len).unwrap();
        log.shrink_to(1);
        let (fill, saw) = machine.fill(9, &read);
        // SAFETY: written below before it is read.
        let mut next =
            unsafe { DeviceBuffer::<u32>::try_uninit(&stream, 3 * PAGE as usize / 4 / 2) }.unwrap();
        // SAFETY: as above.
        unsafe { cuda_stream.launch_builder(&fill).arg(&mut next).arg(&1_usize).launch(SHAPE) }.unwrap();
        gate.open();
        machine.context.synchronize().unwrap();
        assert_eq!(*sum.lock().unwrap(), Some(len as u64), "of {len} ones");
        assert_eq!(
            *saw.lock().unwrap(),
            Some(true),
            "the zeroes came after the reader, and the fill after them"
        );
        assert_eq!(log.to_vec().unwrap(), [1]);
        drop((log, next, stream, other_stream, cuda_stream, other, late_sum, fill));
        machine.ends_empty(memory);
    }
}

#[test]
fn it_may_be_dropped_while_other_streams_work_on_it() {
    let machine = Machine::of_pages(8);
    let memory = machine.memory();
    let (cuda_stream, other) = (machine.stream(), machine.stream());
    let (stream, other_stream) = (memory.stream(&cuda_stream).unwrap(), memory.stream(&other).unwrap());
    let gate = Gate::default();
    let (late_sum, sum, _) = machine.late_sum(&gate);
    let len = PAGE as usize;
    let mut log = GrowableBuffer::<u32>::try_with_max_len(&stream, 2 * len).unwrap();
    log.try_extend_from_slice(&vec![2; len]).unwrap();
    {
        let guard = log.on(&other_stream).unwrap();
        // SAFETY: these are the parameters that were registered.
        unsafe { other.launch_builder(&late_sum).arg(&guard).arg(&len).launch(SHAPE) }.unwrap();
    }
    drop(log);
    let pending = memory.allocator().stats().pending_bytes;
    let next = DeviceBuffer::<u32>::try_zeroed(&stream, len).unwrap();
    gate.open();
    machine.context.synchronize().unwrap();
    assert_eq!((pending, *sum.lock().unwrap()), (2 * PAGE * 2, Some(2 * len as u64)));
    // Once the device is seen to be done, its addresses go. The first trim may have to record what is looked at.
    memory.allocator().trim();
    machine.context.synchronize().unwrap();
    memory.allocator().trim();
    assert_eq!(memory.allocator().audit(), Vec::<String>::new());
    assert_eq!(machine.libcuda.held(0).unwrap().reservations, 1);
    drop((next, stream, other_stream, cuda_stream, other, late_sum));
    machine.ends_empty(memory);
}

#[test]
fn bad_use_is_refused_with_its_values() {
    let machine = Machine::of_pages(4);
    let memory = machine.memory();
    let stream = memory.stream(&machine.stream()).unwrap();
    let none = GrowableBuffer::<u32>::try_with_max_len(&stream, 0).unwrap_err();
    assert!(matches!(none, Error::Allocator(concertina::Error::Request(RequestError::Empty))), "{none:?}");
    let long = GrowableBuffer::<u64>::try_with_max_len(&stream, usize::MAX / 4).unwrap_err();
    let too_long = BufferError::TooLong { elements: usize::MAX / 4, element_bytes: 8 };
    assert!(matches!(&long, Error::Buffer(error) if *error == too_long), "{long:?}");

    let mut log = GrowableBuffer::<u32>::try_with_max_len(&stream, 8 * PAGE as usize).unwrap();
    log.try_extend_from_slice(&[1, 2, 3]).unwrap();
    let over = |error: Error, len| {
        let expected = BufferError::OverMax { len, max_len: 8 * PAGE as usize };
        assert!(matches!(&error, Error::Buffer(error) if *error == expected), "{error:?}");
    };
    over(log.try_grow_to(8 * PAGE as usize + 1).unwrap_err(), 8 * PAGE as usize + 1);
    over(log.try_extend_from_slice(&vec![0; 8 * PAGE as usize]).unwrap_err(), 8 * PAGE as usize + 3);
    // More than the device has.
    assert!(log.try_grow_to(2 * PAGE as usize).unwrap_err().is_out_of_memory());
    // A fill or a copy that fails leaves no new elements.
    for call in ["cuMemsetD8Async", "cuMemcpyHtoDAsync_v2"] {
        machine.libcuda.fail_once(call, 1, Code::INVALID_VALUE).unwrap();
        let error = match call {
            "cuMemsetD8Async" => log.try_grow_to(1_000_000),
            _ => log.try_extend_from_slice(&vec![1; 1_000_000]),
        };
        assert!(matches!(error, Err(Error::Buffer(BufferError::Transfer { .. }))), "{error:?}");
        assert_eq!((log.len(), memory.allocator().stats().live_bytes), (3, 12));
    }
    assert_eq!(log.to_vec().unwrap(), [1, 2, 3]);
    assert_eq!(memory.allocator().audit(), Vec::<String>::new());
    drop((log, stream));
    machine.ends_empty(memory);
}

/// A step of the random programs. `nth` picks one of the buffers that there are.
#[derive(Clone, Debug)]
enum Step {
    Reserve {
        stream: usize,
    },
    Extend {
        nth: usize,
        len: usize,
    },
    GrowTo {
        nth: usize,
        len: usize,
    },
    /// Without zeroes, written by a kernel.
    GrowAndWrite {
        nth: usize,
        by: usize,
    },
    Shrink {
        nth: usize,
        thousandths: usize,
    },
    /// By a kernel, on any stream.
    Check {
        nth: usize,
        stream: usize,
    },
    Compare {
        nth: usize,
    },
    Drop {
        nth: usize,
    },
    /// Buffers that don't grow.
    Make {
        stream: usize,
        len: usize,
    },
    Free {
        nth: usize,
    },
    Trim,
}

/// Elements of a page, on this device.
const PAGE_LEN: usize = 4096;
const STREAMS: usize = 3;
const MOST: usize = 12 * PAGE_LEN;

fn step() -> impl Strategy<Value = Step> {
    let nth = any::<usize>;
    let stream = || 0..STREAMS;
    let len = || prop_oneof![1_usize..200, 1..PAGE_LEN * 2, PAGE_LEN..MOST];
    prop_oneof![
        3 => stream().prop_map(|stream| Step::Reserve { stream }),
        4 => (nth(), len()).prop_map(|(nth, len)| Step::Extend { nth, len }),
        3 => (nth(), len()).prop_map(|(nth, len)| Step::GrowTo { nth, len }),
        4 => (nth(), len()).prop_map(|(nth, by)| Step::GrowAndWrite { nth, by }),
        4 => (nth(), 0_usize..1000).prop_map(|(nth, thousandths)| Step::Shrink { nth, thousandths }),
        1 => nth().prop_map(|nth| Step::Shrink { nth, thousandths: 0 }),
        6 => (nth(), stream()).prop_map(|(nth, stream)| Step::Check { nth, stream }),
        2 => nth().prop_map(|nth| Step::Compare { nth }),
        1 => nth().prop_map(|nth| Step::Drop { nth }),
        3 => (stream(), len()).prop_map(|(stream, len)| Step::Make { stream, len }),
        2 => nth().prop_map(|nth| Step::Free { nth }),
        1 => Just(Step::Trim),
    ]
}

/// What element `at` of the run with this seed is.
fn element(seed: u32, at: usize) -> u32 {
    seed.wrapping_mul(0x9e37_79b9).wrapping_add(at as u32)
}

/// FNV-1a over whole elements (Fowler, Noll, Vo), to compare what a kernel sees with the model.
fn hash(elements: &[u32]) -> u64 {
    let step = |hash: u64, element: &u32| (hash ^ u64::from(*element)).wrapping_mul(0x100_0000_01b3);
    elements.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

struct Program {
    memory: Memory,
    streams: Vec<(Arc<CudaStream>, Stream)>,
    write: CudaFunction,
    check: CudaFunction,
    wrong: Arc<AtomicU64>,
    /// Each with its model, and the number of its stream.
    growables: Vec<(GrowableBuffer<u32>, Vec<u32>, usize)>,
    buffers: Vec<(DeviceBuffer<u32>, Vec<u32>)>,
    seed: u32,
}

impl Program {
    fn new(machine: &Machine) -> Self {
        let memory = Memory::with_driver(Cuda::new(&machine.context).unwrap(), Config::default()).unwrap();
        let streams = (0..STREAMS)
            .map(|_| {
                let cuda_stream = machine.stream();
                let stream = memory.stream(&cuda_stream).unwrap();
                (cuda_stream, stream)
            })
            .collect();
        let write = machine.kernel_on_x(AccessKind::Write, "write", &[8, 8, 4], |launch| {
            let seed = launch.parameter(2);
            crate::elements(launch).iter_mut().enumerate().for_each(|(at, x)| *x = element(seed, at));
        });
        let wrong = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&wrong);
        let check = machine.kernel_on_x(AccessKind::Read, "check", &[8, 8, 8], move |launch| {
            let right = hash(crate::elements(launch)) == launch.parameter::<u64>(2);
            count.fetch_add(u64::from(!right), Ordering::SeqCst);
        });
        let (growables, buffers) = (Vec::new(), Vec::new());
        Self { memory, streams, write, check, wrong, growables, buffers, seed: 0 }
    }

    /// Whether it went well; if not, there was no memory.
    fn done(result: Result<(), Error>) -> bool {
        match result {
            Ok(()) => true,
            Err(Error::Buffer(BufferError::OverMax { .. })) => false,
            Err(error) => {
                assert!(error.is_out_of_memory(), "{error}");
                false
            }
        }
    }

    fn run(&mut self, step: &Step) {
        self.seed += 1;
        let seed = self.seed;
        let nth = |nth: usize, len: usize| nth.checked_rem(len);
        let (grown, made) = (self.growables.len(), self.buffers.len());
        match *step {
            Step::Reserve { stream } => {
                let new = GrowableBuffer::try_with_max_len(&self.streams[stream].1, MOST).unwrap();
                self.growables.push((new, Vec::new(), stream));
            }
            Step::Extend { nth: at, len } => {
                let Some(at) = nth(at, grown) else { return };
                let (buffer, model, _) = &mut self.growables[at];
                let more: Vec<u32> = (0..len).map(|at| element(seed, at)).collect();
                if Self::done(buffer.try_extend_from_slice(&more)) {
                    model.extend(more);
                }
            }
            Step::GrowTo { nth: at, len } => {
                let Some(at) = nth(at, grown) else { return };
                let (buffer, model, _) = &mut self.growables[at];
                if Self::done(buffer.try_grow_to(len)) {
                    model.resize(len.max(model.len()), 0);
                }
            }
            Step::GrowAndWrite { nth: at, by } => {
                let Some(at) = nth(at, grown) else { return };
                let (buffer, model, stream) = &mut self.growables[at];
                let len = model.len();
                // SAFETY: the kernel writes them, below.
                if Self::done(unsafe { buffer.try_grow_uninit(len + by) }) {
                    let mut new = buffer.slice_mut(len..).unwrap();
                    let mut launch = self.streams[*stream].0.launch_builder(&self.write);
                    launch.arg(&mut new).arg(&by).arg(&seed);
                    // SAFETY: these are the parameters that were registered, here and below.
                    unsafe { launch.launch(SHAPE) }.unwrap();
                    model.extend((0..by).map(|at| element(seed, at)));
                }
            }
            Step::Shrink { nth: at, thousandths } => {
                let Some(at) = nth(at, grown) else { return };
                let (buffer, model, _) = &mut self.growables[at];
                let len = model.len() * thousandths / 1000;
                buffer.shrink_to(len);
                model.truncate(len);
            }
            Step::Check { nth: at, stream } => {
                let Some(at) = nth(at, grown) else { return };
                let (buffer, model, _) = &self.growables[at];
                if model.is_empty() {
                    return;
                }
                let (cuda_stream, registered) = &self.streams[stream];
                let guard = buffer.on(registered).unwrap();
                let mut launch = cuda_stream.launch_builder(&self.check);
                let (len, expected) = (model.len(), hash(model));
                launch.arg(&guard).arg(&len).arg(&expected);
                // SAFETY: as above.
                unsafe { launch.launch(SHAPE) }.unwrap();
            }
            Step::Compare { nth: at } => {
                let Some(at) = nth(at, grown) else { return };
                let (buffer, model, _) = &self.growables[at];
                assert!(buffer.to_vec().unwrap() == *model, "not as the model");
            }
            Step::Drop { nth: at } => {
                let Some(at) = nth(at, grown) else { return };
                drop(self.growables.swap_remove(at));
            }
            Step::Make { stream, len } => {
                let model: Vec<u32> = (0..len).map(|at| element(seed, at)).collect();
                match DeviceBuffer::try_from_slice(&self.streams[stream].1, &model) {
                    Ok(buffer) => self.buffers.push((buffer, model)),
                    Err(error) => assert!(error.is_out_of_memory(), "{error}"),
                }
            }
            Step::Free { nth: at } => {
                let Some(at) = nth(at, made) else { return };
                let (buffer, model) = self.buffers.swap_remove(at);
                assert!(buffer.to_vec().unwrap() == model, "a buffer beside has changed");
            }
            Step::Trim => drop(self.memory.allocator().trim()),
        }
    }

    fn end(self, machine: &Machine) {
        for (buffer, model, _) in &self.growables {
            assert!(buffer.to_vec().unwrap() == *model, "not as the model");
        }
        for (buffer, model) in &self.buffers {
            assert!(buffer.to_vec().unwrap() == *model, "a buffer beside has changed");
        }
        machine.context.synchronize().unwrap();
        assert_eq!(self.wrong.load(Ordering::SeqCst), 0, "kernels that saw something else");
        let allocator = self.memory.allocator();
        assert_eq!(allocator.audit(), Vec::<String>::new());
        let model = self.growables.iter().map(|(_, model, _)| model.len());
        let elements =
            model.sum::<usize>() + self.buffers.iter().map(|(_, model)| model.len()).sum::<usize>();
        assert_eq!(allocator.stats().live_bytes, 4 * elements as u64);
        drop((self.growables, self.buffers, self.streams));
        self.memory.close().unwrap();
    }
}

#[test]
fn a_vector_of_the_host_has_the_same_in_it() {
    let steps = prop::collection::vec(step(), 1..120);
    let config = Cases { cases: 300, failure_persistence: None, ..Cases::default() };
    TestRunner::new(config)
        .run(&steps, |steps| {
            // So few pages that frames go from one to another.
            let page = PAGE_LEN as u64 * 4;
            let config = DeviceConfig {
                capacity_bytes: 40 * page,
                granularity_bytes: page,
                ..DeviceConfig::default()
            };
            let libcuda = load().unwrap().fresh(&config).unwrap();
            let machine = Machine { context: CudaContext::new(0).unwrap(), libcuda };
            let mut program = Program::new(&machine);
            steps.iter().for_each(|step| program.run(step));
            program.end(&machine);
            machine.ends();
            Ok(())
        })
        .unwrap();
}
