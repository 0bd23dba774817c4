//! Random programs: streams write, read, copy and drop buffers in any order, by plain use, views, guards and cudarc's
//! copies; what each of them reads is what the program says.
//!
//! Main types: [`Program`]. Neighbours: `order` has the cases one by one.
//!
//! Kernels check what they see: each one that reads knows the value that the program has written last. So a use that is
//! too early or too late, memory that is another's, and a byte that somebody else has changed all show.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use concertina::cuda::{DeviceBuffer, Memory, Stream};
use cudarc::driver::{CudaFunction, CudaStream, PushKernelArg};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::{Machine, PAGE, SHAPE};
use concertina_libcuda::AccessKind;

/// What is done with one of the live buffers, on one of the streams.
#[derive(Clone, Copy, Debug)]
enum Step {
    Make {
        stream: usize,
        units: usize,
    },
    Drop,
    /// By a kernel, plain at home or by a guard elsewhere.
    Write {
        stream: usize,
    },
    WritePart {
        stream: usize,
    },
    Read {
        stream: usize,
    },
    /// Each half on a stream of its own, the second before the first.
    WriteHalves {
        stream: usize,
        other: usize,
    },
    /// On the device, in place of the old one, which is dropped at once.
    Copy {
        stream: usize,
    },
    /// By cudarc, which is told nothing but the buffer.
    Clear {
        stream: usize,
    },
    Download {
        stream: usize,
    },
    /// Register a stream anew.
    Renew {
        stream: usize,
    },
    Trim,
}

const STREAMS: usize = 4;
/// Streams of the driver that are used without being registered.
const STRAY: usize = STREAMS;

fn step() -> impl Strategy<Value = Step> {
    let stream = 0..STREAMS;
    prop_oneof![
        4 => (stream.clone(), 1..6_usize).prop_map(|(stream, units)| Step::Make { stream, units }),
        3 => Just(Step::Drop),
        6 => stream.clone().prop_map(|stream| Step::Write { stream }),
        3 => stream.clone().prop_map(|stream| Step::WritePart { stream }),
        3 => (stream.clone(), stream.clone())
            .prop_map(|(stream, other)| Step::WriteHalves { stream, other }),
        1 => stream.clone().prop_map(|stream| Step::Copy { stream }),
        8 => stream.clone().prop_map(|stream| Step::Read { stream }),
        2 => (0..=STRAY).prop_map(|stream| Step::Clear { stream }),
        1 => (0..=STRAY).prop_map(|stream| Step::Download { stream }),
        1 => stream.prop_map(|stream| Step::Renew { stream }),
        1 => Just(Step::Trim),
    ]
}

struct Live {
    buffer: DeviceBuffer<u32>,
    home: Arc<CudaStream>,
    /// Of the first half of the elements, and of the rest.
    values: [u32; 2],
}

struct Program<'a> {
    machine: &'a Machine,
    memory: Memory,
    streams: Vec<(Arc<CudaStream>, Stream)>,
    stray: Arc<CudaStream>,
    write: CudaFunction,
    check: CudaFunction,
    wrong: Arc<AtomicU64>,
    live: Vec<Live>,
    value: u32,
}

/// Elements of a unit: buffers of one unit are small, those of more have pages of their own.
const UNIT: usize = (PAGE / 4) as usize * 2 / 3;

/// The elements that kernels look at: both ends of both halves. Touching all of each page would take all the time.
fn sample(len: usize) -> Vec<usize> {
    let half = len / 2;
    vec![0, half - 1, half, len - 1]
}

impl<'a> Program<'a> {
    fn new(machine: &'a Machine) -> Self {
        let memory = machine.memory();
        let streams = (0..STREAMS)
            .map(|_| {
                let cuda_stream = machine.stream();
                let stream = memory.stream(&cuda_stream).unwrap();
                (cuda_stream, stream)
            })
            .collect();
        let wrong = Arc::new(AtomicU64::new(0));
        // write(x, n, value): the ends of the halves that `n` elements of `x` have.
        let write = machine.kernel_on_x(AccessKind::Write, "write", &[8, 8, 4], |launch| {
            let elements = crate::elements(launch);
            sample(elements.len()).into_iter().for_each(|at| elements[at] = launch.parameter(2));
        });
        // check(x, n, first, rest): counts those that are not as said.
        let count = Arc::clone(&wrong);
        let check = machine.kernel_on_x(AccessKind::Read, "check", &[8, 8, 4, 4], move |launch| {
            let elements = crate::elements(launch);
            let expected = [launch.parameter::<u32>(2), launch.parameter(3)];
            let half = elements.len() / 2;
            let other = |at: &usize| elements[*at] != expected[usize::from(*at >= half)];
            count.fetch_add(
                sample(elements.len()).iter().filter(|at| other(at)).count() as u64,
                Ordering::SeqCst,
            );
        });
        let stray = machine.stream();
        Self { machine, memory, streams, stray, write, check, wrong, live: Vec::new(), value: 0 }
    }

    fn cuda_stream(&self, stream: usize) -> Arc<CudaStream> {
        self.streams.get(stream).map_or(&self.stray, |(cuda_stream, _)| cuda_stream).clone()
    }

    fn run(&mut self, step: Step, pick: usize) {
        self.value += 1;
        let value = self.value;
        match step {
            Step::Make { stream, units } => {
                let len = if units == 1 { 4 + pick % 1000 } else { units * UNIT };
                let (home, registered) = &self.streams[stream];
                // SAFETY: written below, before anybody reads.
                match unsafe { DeviceBuffer::<u32>::try_uninit(registered, len) } {
                    Ok(mut buffer) => {
                        let mut launch = home.launch_builder(&self.write);
                        launch.arg(&mut buffer).arg(&len).arg(&value);
                        // SAFETY: these are the parameters that were registered, here and below.
                        unsafe { launch.launch(SHAPE) }.unwrap();
                        self.live.push(Live { buffer, home: Arc::clone(home), values: [value; 2] });
                    }
                    Err(error) => assert!(error.is_out_of_memory(), "{error}"),
                }
            }
            Step::Renew { stream } => {
                let cuda_stream = self.machine.stream();
                let registered = self.memory.stream(&cuda_stream).unwrap();
                // The old one goes, whatever it still has to do.
                self.streams[stream] = (cuda_stream, registered);
            }
            Step::Trim => drop(self.memory.allocator().trim()),
            _ if self.live.is_empty() => {}
            Step::Drop => drop(self.live.swap_remove(pick % self.live.len())),
            Step::Write { stream } => self.write(stream, pick, value),
            Step::WritePart { stream } => self.write_part(stream, pick, value),
            Step::WriteHalves { stream, other } => self.write_halves([stream, other], pick, value),
            Step::Copy { stream } => {
                let index = pick % self.live.len();
                if self.live[index].buffer.len() > 2 * UNIT {
                    // Each byte of the copy is touched.
                    return;
                }
                let (home, registered) = &self.streams[stream];
                match self.live[index].buffer.try_clone(registered) {
                    Ok(buffer) => {
                        let values = self.live[index].values;
                        self.live[index] = Live { buffer, home: Arc::clone(home), values };
                    }
                    Err(error) => assert!(error.is_out_of_memory(), "{error}"),
                }
            }
            Step::Read { stream } => self.read(stream, pick),
            Step::Clear { stream } => {
                let (cuda_stream, index) = (self.cuda_stream(stream), pick % self.live.len());
                let Live { buffer, values, .. } = &mut self.live[index];
                let half = buffer.len() / 2;
                cuda_stream.memset_zeros(&mut buffer.slice_mut(..half).unwrap()).unwrap();
                values[0] = 0;
            }
            Step::Download { stream } => {
                let (cuda_stream, index) = (self.cuda_stream(stream), pick % self.live.len());
                let Live { buffer, values, .. } = &self.live[index];
                let half = buffer.len() / 2;
                let ends = buffer.slice(half - 1..=half).unwrap();
                assert_eq!(cuda_stream.clone_dtoh(&ends).unwrap(), values);
            }
        }
    }

    fn write(&mut self, stream: usize, pick: usize, value: u32) {
        let index = pick % self.live.len();
        let (cuda_stream, registered) = &self.streams[stream];
        let Live { buffer, home, values } = &mut self.live[index];
        let len = buffer.len();
        if Arc::ptr_eq(home, cuda_stream) {
            let mut launch = home.launch_builder(&self.write);
            launch.arg(buffer).arg(&len).arg(&value);
            // SAFETY: as above.
            unsafe { launch.launch(SHAPE) }.unwrap();
        } else {
            let mut guard = buffer.on_mut(registered).unwrap();
            let mut launch = cuda_stream.launch_builder(&self.write);
            launch.arg(&mut guard).arg(&len).arg(&value);
            // SAFETY: as above.
            unsafe { launch.launch(SHAPE) }.unwrap();
        }
        *values = [value; 2];
    }

    fn write_part(&mut self, stream: usize, pick: usize, value: u32) {
        let index = pick % self.live.len();
        let (cuda_stream, registered) = &self.streams[stream];
        let Live { buffer, values, .. } = &mut self.live[index];
        let half = buffer.len() / 2;
        if half < 4 {
            return;
        }
        // The ends of the halves of the first half: the outer two are looked at.
        let mut part = buffer.slice_mut(..half).unwrap();
        let mut guard = part.on_mut(registered).unwrap();
        let mut launch = cuda_stream.launch_builder(&self.write);
        launch.arg(&mut guard).arg(&half).arg(&value);
        // SAFETY: as above.
        unsafe { launch.launch(SHAPE) }.unwrap();
        values[0] = value;
    }

    /// The first half is the plain argument of a kernel that is launched after the second was written, if its stream is
    /// the home; else it is written through a guard.
    fn write_halves(&mut self, streams: [usize; 2], pick: usize, value: u32) {
        let index = pick % self.live.len();
        let [(first, first_registered), (second, second_registered)] =
            streams.map(|stream| &self.streams[stream]);
        let Live { buffer, home, values } = &mut self.live[index];
        let (half, rest) = (buffer.len() / 2, buffer.len().div_ceil(2));
        if half < 4 {
            return;
        }
        let (mut left, mut right) = buffer.split_at_mut(half).unwrap();
        let other_value = value ^ (1 << 31);
        let mut write_right = || {
            let mut guard = right.on_mut(second_registered).unwrap();
            let mut launch = second.launch_builder(&self.write);
            launch.arg(&mut guard).arg(&rest).arg(&other_value);
            // SAFETY: as above.
            unsafe { launch.launch(SHAPE) }.unwrap();
        };
        let mut launch = first.launch_builder(&self.write);
        if Arc::ptr_eq(home, first) {
            launch.arg(&mut left).arg(&half).arg(&value);
            write_right();
            // SAFETY: as above.
            unsafe { launch.launch(SHAPE) }.unwrap();
        } else {
            let mut guard = left.on_mut(first_registered).unwrap();
            launch.arg(&mut guard).arg(&half).arg(&value);
            write_right();
            // SAFETY: as above.
            unsafe { launch.launch(SHAPE) }.unwrap();
        }
        *values = [value, other_value];
    }

    fn read(&self, stream: usize, pick: usize) {
        let (cuda_stream, registered) = &self.streams[stream];
        let Live { buffer, home, values } = &self.live[pick % self.live.len()];
        let len = buffer.len();
        let mut launch = cuda_stream.launch_builder(&self.check);
        if Arc::ptr_eq(home, cuda_stream) {
            launch.arg(buffer).arg(&len).arg(&values[0]).arg(&values[1]);
            // SAFETY: as above.
            unsafe { launch.launch(SHAPE) }.unwrap();
        } else {
            let guard = buffer.on(registered).unwrap();
            launch.arg(&guard).arg(&len).arg(&values[0]).arg(&values[1]);
            // SAFETY: as above.
            unsafe { launch.launch(SHAPE) }.unwrap();
        }
    }

    /// Reads everything a last time, and gives everything back.
    fn end(mut self) -> u64 {
        for index in 0..self.live.len() {
            self.read(index % STREAMS, index);
        }
        self.machine.context.synchronize().unwrap();
        assert_eq!(self.memory.allocator().audit(), Vec::<String>::new());
        self.live.clear();
        self.streams.clear();
        self.memory.close().unwrap();
        self.wrong.load(Ordering::SeqCst)
    }
}

#[test]
fn every_stream_reads_what_was_written_last() {
    let steps = prop::collection::vec((step(), any::<prop::sample::Index>()), 1..400);
    // About 100,000 steps.
    let config = Config { cases: 500, failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(&steps, |steps| {
            // So few pages that frames go from stream to stream.
            let machine = Machine::of_pages(24);
            let mut program = Program::new(&machine);
            for (step, pick) in steps {
                program.run(step, pick.index(1 << 20));
            }
            prop_assert_eq!(program.end(), 0, "elements that were not as written");
            machine.ends();
            Ok(())
        })
        .unwrap();
}
