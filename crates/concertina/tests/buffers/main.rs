//! Buffers over the emulated libcuda: what cudarc does with them, and in which order streams come to them.
//!
//! Main types: [`Machine`], [`Gate`]. Neighbours: `concertina-libcuda` is the device, and its kernels are closures.
//!
//! Nothing here waits for a time: kernels that must be late wait for a gate, and kernels that must come later look whether
//! those have run.

#![cfg(target_os = "linux")]
#![allow(unsafe_code, reason = "launches, and kernels that follow device addresses")]

mod examples;
mod gaps;
mod graphs;
mod growables;
mod libraries;
mod mallocs;
mod misuse;
mod order;
mod parts;
mod random;
mod rules;
mod values;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use concertina::Config;
use concertina::cuda::{Cuda, Memory};
use concertina_libcuda::{AccessKind, DeviceConfig, FreshDevice, Launch, load};
use cudarc::driver::{CudaContext, CudaFunction, CudaStream, LaunchConfig};
use cudarc::nvrtc::Ptx;

const PAGE: u64 = 2 << 20;
/// One launch is one call of the closure, whatever its shape.
const SHAPE: LaunchConfig = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };

/// What kernels wait for until the test opens it, or ends: a test that fails must not keep the next one waiting.
#[derive(Default)]
struct Gate {
    inner: Arc<(Mutex<bool>, Condvar)>,
    is_kernels: bool,
}

impl Gate {
    fn open(&self) {
        *self.inner.0.lock().unwrap() = true;
        self.inner.1.notify_all();
    }

    fn pass(&self) {
        let mut open = self.inner.0.lock().unwrap();
        while !*open {
            open = self.inner.1.wait(open).unwrap();
        }
    }
}

/// A clone is a kernel's.
impl Clone for Gate {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner), is_kernels: true }
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        if !self.is_kernels {
            self.open();
        }
    }
}

/// Whether something has happened.
#[derive(Clone, Default)]
struct Flag(Arc<AtomicBool>);

impl Flag {
    fn set(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// A fresh emulated device for this test alone, and a program in it; at the end it must hold nothing.
struct Machine {
    context: Arc<CudaContext>,
    // Dropped last: another test may have the device then.
    libcuda: FreshDevice,
}

impl Machine {
    fn new() -> Self {
        Self::of_pages(64)
    }

    fn of_pages(pages: u64) -> Self {
        Self::of(&DeviceConfig { capacity_bytes: pages * PAGE, ..DeviceConfig::default() })
    }

    fn of(config: &DeviceConfig) -> Self {
        let libcuda = load().unwrap().fresh(config).unwrap();
        Self { context: CudaContext::new(0).unwrap(), libcuda }
    }

    fn memory(&self) -> Memory {
        Memory::with_driver(Cuda::new(&self.context).unwrap(), Config::default()).unwrap()
    }

    fn stream(&self) -> Arc<CudaStream> {
        self.context.new_stream().unwrap()
    }

    /// A kernel that is the closure, on `x` and `n`, its first parameters: `n` elements that it reads, or writes, too.
    fn kernel_on_x(
        &self,
        kind: AccessKind,
        name: &str,
        parameter_bytes: &[usize],
        body: impl Fn(&Launch<'_>) + Send + Sync + 'static,
    ) -> CudaFunction {
        let accesses = move |launch: &Launch<'_>| {
            let bytes = 4 * launch.parameter::<u64>(1);
            vec![if kind == AccessKind::Read { launch.reads(0, bytes) } else { launch.writes(0, bytes) }]
        };
        self.libcuda.register_kernel_touching(name, parameter_bytes, body, accesses).unwrap();
        self.context.load_module(Ptx::from_src("any text")).unwrap().load_function(name).unwrap()
    }

    /// A kernel that is the closure.
    fn kernel(
        &self,
        name: &str,
        parameter_bytes: &[usize],
        body: impl Fn(&Launch<'_>) + Send + Sync + 'static,
    ) -> CudaFunction {
        self.libcuda.register_kernel(name, parameter_bytes, body).unwrap();
        self.context.load_module(Ptx::from_src("any text")).unwrap().load_function(name).unwrap()
    }

    /// `late_sum(x, n)`: waits for the gate, keeps the sum of `x` and says that it ran.
    fn late_sum(&self, gate: &Gate) -> (CudaFunction, Arc<Mutex<Option<u64>>>, Flag) {
        let (sum, ran) = (Arc::new(Mutex::new(None)), Flag::default());
        let (gate, inside, flag) = (gate.clone(), Arc::clone(&sum), ran.clone());
        let kernel = self.kernel_on_x(AccessKind::Read, "late_sum", &[8, 8], move |launch| {
            gate.pass();
            let elements = elements(launch);
            *inside.lock().unwrap() = Some(elements.iter().map(|&element| u64::from(element)).sum());
            flag.set();
        });
        (kernel, sum, ran)
    }

    /// `fill(x, n)` with a value, which says whether `after` had happened by then.
    fn fill(&self, value: u32, after: &Flag) -> (CudaFunction, Arc<Mutex<Option<bool>>>) {
        let saw = Arc::new(Mutex::new(None));
        let (after, inside) = (after.clone(), Arc::clone(&saw));
        let kernel = self.kernel_on_x(AccessKind::Write, &format!("fill_{value}"), &[8, 8], move |launch| {
            *inside.lock().unwrap() = Some(after.is_set());
            elements(launch).fill(value);
        });
        (kernel, saw)
    }

    /// Gives streams that wait for nothing the time to do what they have.
    fn let_others_run(&self) {
        let kernel = self.kernel("nothing", &[], |_| {});
        for _ in 0..20 {
            let stream = self.stream();
            // SAFETY: the kernel takes nothing.
            unsafe { stream.launch_builder(&kernel).launch(SHAPE) }.unwrap();
            stream.synchronize().unwrap();
        }
    }

    /// Everything the program had is dropped, and nothing is left.
    #[track_caller]
    fn ends_empty(self, memory: Memory) {
        memory.close().unwrap();
        self.ends();
    }

    #[track_caller]
    fn ends(self) {
        if let Err(raced) = self.libcuda.check_no_races() {
            panic!("{raced}");
        }
        self.gives_all_back();
    }

    /// The end of a program that raced, and was to.
    #[track_caller]
    fn gives_all_back(self) {
        drop(self.context);
        if let Err(held) = self.libcuda.check_nothing_held() {
            panic!("{held}");
        }
        assert_eq!(self.libcuda.broken_rules(0), Vec::<String>::new());
    }
}

/// The elements that a kernel with a pointer and a count was launched on.
fn elements<'a>(launch: &Launch<'_>) -> &'a mut [u32] {
    let count = launch.parameter::<usize>(1);
    let start = launch.pointer::<u32>(launch.parameter(0), count);
    // SAFETY: the tests launch it on as many elements of a buffer, in an order in which nobody else has them.
    unsafe { std::slice::from_raw_parts_mut(start, count) }
}
