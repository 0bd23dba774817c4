//! The bench harness of Concertina: one run of one trace on one allocator over the emulated device, and what came out.
//!
//! Main types: [`Case`], [`Outcome`], [`DeviceSpec`], [`TraceFile`]. Neighbours: `cargo xtask bench` prints the outcomes,
//! the criterion benches time the same runs, tests assert on them. The method is in `benches/README.md`.
//!
//! ```
//! use concertina_bench::{AllocatorName, Case, DeviceSpec, PolicyName, TraceFile};
//! use concertina_trace::LoadedTrace;
//!
//! let trace = LoadedTrace::open(TraceFile::find("s1")?.path())?;
//! let device = DeviceSpec::default();
//! let case = Case { trace: &trace, allocator: AllocatorName::Direct, policy: PolicyName::Lean, device: &device };
//! let outcome = case.run()?.outcome;
//! assert!(outcome.completed);
//! // Three blocks of 100, 200 and 300 MiB, the middle one freed, then 250: all in whole granules.
//! assert_eq!(outcome.mapped_peak_bytes, 650 << 20);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

#[cfg(not(target_os = "linux"))]
compile_error!(
    "the bench and `cargo xtask` need Linux, where the emulated libcuda runs; the library itself builds elsewhere, \
     too: `cargo build -p concertina --features cuda`"
);

pub mod allocator_name;
pub mod baseline_target;
pub mod bench_device;
pub mod case;
pub mod catalogue;
pub mod chunks;
pub mod churn;
pub mod clocked_device;
pub mod concertina_target;
pub mod contender;
pub mod counted;
pub mod cuda_device;
pub mod device;
pub mod handover;
pub mod largest_request;
pub mod min_capacity;
pub mod moment;
pub mod null_driver;
pub mod number;
pub mod outcome;
pub mod parallel;
pub mod passes;
pub mod probe;
pub mod raw_target;
pub mod report;
pub mod side_by_side;
pub mod size;
mod targets;
pub mod threads;
mod unlimited;

pub use allocator_name::{AllocatorList, AllocatorName, AllocatorNameError};
pub use baseline_target::BaselineTarget;
pub use bench_device::BenchDevice;
pub use case::{Case, CaseError, Run};
pub use catalogue::{PolicyName, SpeedSection, TraceFile, UnknownPolicy, UnknownSection, UnknownTrace};
pub use concertina_target::ConcertinaTarget;
pub use counted::Counted;
pub use cuda_device::{CudaError, EmulatedCuda, RealCuda};
pub use device::{DeviceKind, DeviceSpec};
pub use largest_request::{FoundRequest, LargestRequest};
pub use min_capacity::{Fineness, FoundCapacity, MinCapacity};
pub use moment::{Moment, MomentError};
pub use outcome::{AllocationNs, Failure, Fences, Outcome};
pub use parallel::in_parallel;
pub use report::{ChartFile, Observed, Report, TraceReport};
pub use size::{Capacity, Granularity, SizeError};
