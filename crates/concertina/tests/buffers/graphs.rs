//! Captured graphs with memory of a pool, over the real rules of captures in the emulated libcuda.
//!
//! Main types: none. Neighbours: `order` has streams that capture nothing.

use std::sync::Arc;

use concertina::cuda::{DeviceBuffer, Error, Graph, GraphError, GraphPool, Memory, Stream};
use concertina::{CaptureError, Growth, Layout};
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaFunction, CudaStream, PushKernelArg};

use crate::{Flag, Gate, Machine, PAGE, SHAPE};
use concertina_libcuda::AccessKind;

/// Some pages of numbers.
const LEN: usize = (3 * PAGE / 4) as usize;

/// Calls that a capture with held memory must not make.
const FORBIDDEN: [&str; 9] = [
    "cuMemAddressReserve",
    "cuMemCreate",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMemRelease",
    "cuEventRecord",
    "cuEventQuery",
    "cuStreamWaitEvent",
];

struct Program {
    own: Arc<CudaStream>,
    stream: Stream,
    /// `add(x, n, summand)`.
    add: CudaFunction,
    memory: Memory,
    machine: Machine,
}

impl Program {
    fn new(pages: u64) -> Self {
        let machine = Machine::of_pages(pages);
        let memory = machine.memory();
        let own = machine.stream();
        let stream = memory.stream(&own).unwrap();
        let add = machine.kernel_on_x(AccessKind::Write, "add", &[8, 8, 4], |launch| {
            let summand = launch.parameter::<u32>(2);
            crate::elements(launch).iter_mut().for_each(|element| *element += summand);
        });
        Self { own, stream, add, memory, machine }
    }

    fn add(&self, buffer: &mut DeviceBuffer<u32>, summand: u32) {
        let mut launch = self.own.launch_builder(&self.add);
        launch.arg(buffer).arg(&LEN).arg(&summand);
        // SAFETY: these are the parameters that were registered.
        unsafe { launch.launch(SHAPE) }.unwrap();
    }

    /// A graph that leaves `base` + 30 in its result, by way of a temporary buffer.
    fn capture(&self, pool: &GraphPool, base: u32) -> (Graph, DeviceBuffer<u32>) {
        let captured = self.stream.capture(pool, || {
            let mut temporary = DeviceBuffer::<u32>::try_zeroed(&self.stream, LEN)?;
            self.add(&mut temporary, base + 10);
            let mut result = DeviceBuffer::<u32>::try_zeroed(&self.stream, LEN)?;
            result.copy_from(&temporary)?;
            self.add(&mut result, 20);
            Ok::<_, Error>(result)
        });
        captured.unwrap()
    }

    fn calls(&self) -> Vec<u64> {
        FORBIDDEN.iter().map(|name| self.machine.libcuda.calls(name).unwrap()).collect()
    }

    fn ends_empty(self) {
        let Self { own, stream, add, memory, machine } = self;
        drop((stream, own, add));
        machine.ends_empty(memory);
    }
}

fn launch(graph: &Graph, stream: &Stream) {
    // SAFETY: results of the graphs live, or nobody looks at them; each is used on the stream of the launch only.
    unsafe { graph.launch(stream) }.unwrap();
}

#[test]
fn replays_are_right_while_other_buffers_come_and_go() {
    let program = Program::new(24);
    let pool = program.memory.graph_pool();
    let (first, one) = program.capture(&pool, 100);
    let (second, two) = program.capture(&pool, 1000);
    for round in 0..20 {
        // Takes all there is, and leaves its mark in it.
        let mut bytes = 40 * PAGE;
        let mut others = Vec::new();
        while bytes > 1 << 18 {
            match DeviceBuffer::<u8>::try_zeroed(&program.stream, bytes as usize) {
                Ok(mut buffer) => {
                    buffer.fill(0xee).unwrap();
                    others.push(buffer);
                }
                Err(_) => bytes /= 2,
            }
        }
        launch(&first, &program.stream);
        launch(&second, &program.stream);
        assert!(one.to_vec().unwrap().iter().all(|&element| element == 130), "{round}");
        assert!(two.to_vec().unwrap().iter().all(|&element| element == 1030), "{round}");
        assert!(others.iter().all(|other| other.to_vec().unwrap().iter().all(|&byte| byte == 0xee)));
        drop(others);
        program.memory.allocator().trim();
    }
    drop((first, second, pool, one, two));
    program.ends_empty();
}

#[test]
fn with_memory_held_a_capture_makes_none_of_these_calls() {
    let program = Program::new(32);
    let pool = program.memory.allocator().graph_pool_with(Growth::Held);
    pool.reserve(8 * PAGE, program.stream.as_allocator_stream()).unwrap();
    // Buffers on several streams, so that there is something to steal and to wait for.
    let other = program.memory.stream(&program.machine.stream()).unwrap();
    drop(DeviceBuffer::<u32>::try_zeroed(&other, LEN).unwrap());
    let counted = program.stream.capture(&pool, || {
        let before = program.calls();
        let kept = DeviceBuffer::<u32>::try_zeroed(&program.stream, LEN)?;
        for _ in 0..10 {
            let mut buffer = DeviceBuffer::<u32>::try_zeroed(&program.stream, LEN)?;
            program.add(&mut buffer, 1);
        }
        assert_eq!(program.calls(), before, "{FORBIDDEN:?}");
        let too_much = DeviceBuffer::<u32>::try_zeroed(&program.stream, 3 * LEN);
        let refused = matches!(
            too_much,
            Err(Error::Allocator(concertina::Error::Capture(CaptureError::NotHeld { needed_bytes, .. })))
                if needed_bytes == 12 * PAGE
        );
        assert!(refused, "{too_much:?}");
        assert_eq!(program.calls(), before, "{FORBIDDEN:?}");
        Ok::<_, Error>(kept)
    });
    let (graph, kept) = counted.unwrap();
    launch(&graph, &program.stream);
    assert!(kept.to_vec().unwrap().iter().all(|&element| element == 0));
    drop((graph, kept, pool, other));
    program.ends_empty();
}

/// Two late launches on two streams, and nobody holds the pool any more: its memory serves others behind both.
#[test]
fn a_pool_may_go_while_a_launch_runs() {
    let program = Program::new(16);
    let gate = Gate::default();
    let (inside, ran) = (gate.clone(), Flag::default());
    let flag = ran.clone();
    let late = program.machine.kernel_on_x(AccessKind::Write, "late_fill", &[8, 8], move |launch| {
        inside.pass();
        crate::elements(launch).fill(1);
        flag.set();
    });
    let elsewhere = program.machine.stream();
    let other = program.memory.stream(&elsewhere).unwrap();
    let pool = program.memory.graph_pool();
    let captured = program.stream.capture(&pool, || {
        // SAFETY: nobody reads it.
        let mut buffer = unsafe { DeviceBuffer::<u32>::try_uninit(&program.stream, 4 * LEN) }?;
        let mut launch = program.own.launch_builder(&late);
        launch.arg(&mut buffer).arg(&LEN);
        // SAFETY: these are the parameters that were registered.
        unsafe { launch.launch(SHAPE) }.unwrap();
        Ok::<_, Error>(())
    });
    let (graph, ()) = captured.unwrap();
    drop(pool);
    launch(&graph, &other);
    drop(graph);
    assert_eq!(program.memory.allocator().stats().pinned_bytes, 0);
    let mut taken = DeviceBuffer::<u32>::try_zeroed(&program.stream, 4 * LEN).unwrap();
    assert!(program.memory.allocator().stats().stolen_frames >= 8, "only 16 pages are there");
    program.add(&mut taken, 7);
    program.machine.let_others_run();
    assert!(!ran.is_set());
    gate.open();
    assert!(taken.slice(..LEN).unwrap().to_vec().unwrap().iter().all(|&element| element == 7));
    assert!(ran.is_set(), "the fill and the kernel came after the launch");
    drop((taken, other, elsewhere, late));
    program.ends_empty();
}

#[test]
fn a_broken_capture_is_an_error_and_the_next_one_is_none() {
    let program = Program::new(32);
    let pool = program.memory.graph_pool();
    let outside = DeviceBuffer::<u32>::try_zeroed(&program.stream, LEN).unwrap();
    // A copy that waits.
    let broken = program.stream.capture(&pool, || Ok::<_, Error>(outside.to_vec()?));
    assert!(matches!(broken, Err(Error::Buffer(_))), "{broken:?}");
    // One that was broken, and nobody says so.
    let broken = program.stream.capture(&pool, || {
        drop(outside.to_vec());
        Ok::<_, Error>(())
    });
    assert!(matches!(broken, Err(Error::Graph(GraphError::Driver { .. }))), "{broken:?}");
    // An error of the program's own.
    let failed = program.stream.capture(&pool, || Err::<(), _>(Error::Graph(GraphError::NoGraph)));
    assert!(matches!(failed, Err(Error::Graph(GraphError::NoGraph))), "{failed:?}");
    let (graph, result) = program.capture(&pool, 1);
    launch(&graph, &program.stream);
    assert_eq!(result.to_vec().unwrap(), vec![31; LEN]);
    drop((graph, result, pool, outside));
    program.ends_empty();
}

/// The allocator sees a capture that it was not told of, and does not break it.
#[test]
fn a_capture_by_hand_needs_a_scope() {
    let program = Program::new(32);
    let allocator = program.memory.allocator();
    let (pool, stream) = (program.memory.graph_pool(), program.stream.as_allocator_stream());
    program.own.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
    let refused = allocator.allocate(Layout::new(PAGE), stream);
    assert!(matches!(refused, Err(concertina::Error::Capture(CaptureError::NoScope { .. }))), "{refused:?}");
    // Now it is told, in the middle of it: another thread takes and gives meanwhile.
    let scope = stream.capture(&pool).unwrap();
    let block = allocator.allocate(Layout::new(PAGE), stream).unwrap();
    std::thread::scope(|threads| {
        let work = || {
            let other = program.memory.stream(&program.machine.stream()).unwrap();
            for pages in 1..20 {
                drop(DeviceBuffer::<u8>::try_zeroed(&other, (pages * PAGE) as usize).unwrap());
            }
            allocator.trim();
            allocator.trim_wait().unwrap();
        };
        threads.spawn(work).join().unwrap();
    });
    let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let graph = program.own.end_capture(flags).unwrap().expect("a graph");
    scope.end().unwrap();
    drop((graph, block, pool));
    program.ends_empty();
}

#[test]
fn a_fork_has_a_scope_of_its_own() {
    let program = Program::new(32);
    let pool = program.memory.graph_pool();
    let elsewhere = program.machine.stream();
    let other = program.memory.stream(&elsewhere).unwrap();
    let captured = program.stream.capture(&pool, || {
        let scope = other.as_allocator_stream().capture(&pool)?;
        let fork = program.own.record_event(None).unwrap();
        elsewhere.wait(&fork).unwrap();
        let buffers = [&program.stream, &other].map(|stream| DeviceBuffer::<u32>::try_zeroed(stream, LEN));
        let [mut here, mut there] = buffers.map(Result::unwrap);
        here.fill(3)?;
        there.fill(4)?;
        let join = elsewhere.record_event(None).unwrap();
        program.own.wait(&join).unwrap();
        Ok::<_, Error>((here, there, scope))
    });
    let (graph, (here, there, scope)) = captured.unwrap();
    scope.end().unwrap();
    launch(&graph, &program.stream);
    program.own.synchronize().unwrap();
    assert_eq!((here.to_vec().unwrap(), there.to_vec().unwrap()), (vec![3; LEN], vec![4; LEN]));
    // The other stream is an ordinary one again.
    assert_eq!(DeviceBuffer::<u32>::try_zeroed(&other, LEN).unwrap().to_vec().unwrap(), vec![0; LEN]);
    drop((graph, here, there, pool, other, elsewhere));
    program.ends_empty();
}
