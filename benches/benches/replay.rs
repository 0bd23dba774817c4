//! What does an event of a whole trace cost the host, by allocator (the emulated driver is in the figure)? And what
//! when the allocator has run the trace once before (the driver is taken off)?
//!
//! Neighbours: `hit_path` times the fast path alone; `cargo xtask bench` prints the same figure beside the others.

use std::time::Duration;

use concertina_bench::passes::Passes;
use concertina_bench::{AllocatorName, Case, DeviceSpec, PolicyName, TraceFile};
use concertina_trace::LoadedTrace;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

/// One trace of training on one stream, one of buffers that move between three.
const TRACES: &[&str] = &["t1", "s7"];

fn replay(criterion: &mut Criterion) {
    for word in TRACES {
        let file = TraceFile::find(word).expect("a bundled trace");
        let trace = LoadedTrace::open(file.path()).expect("a bundled trace is readable");
        let device = DeviceSpec::default();
        let mut group = criterion.benchmark_group(format!("replay/{word}"));
        group.throughput(Throughput::Elements(trace.steps().len() as u64));
        group.sample_size(10).measurement_time(Duration::from_secs(5));
        for &allocator in AllocatorName::ALL {
            let case = Case { trace: &trace, allocator, policy: PolicyName::Balanced, device: &device };
            group.bench_function(BenchmarkId::from_parameter(allocator), |bencher| {
                // The harness times the events alone: not the making of the device, nor what is freed at the end.
                bencher.iter_custom(|times| {
                    let run = || case.run().expect("the device is large enough").outcome;
                    (0..times)
                        .map(|_| run())
                        .map(|o| Duration::from_nanos((o.host_ns_per_event * o.events as f64) as u64))
                        .sum()
                });
            });
        }
        group.finish();
    }
}

/// Training, training with sequences of any length, serving.
const TRACES_AGAIN: &[&str] = &["t1", "t2", "t7"];

/// The second pass on the same allocator, the driver's time taken off.
fn second_pass(criterion: &mut Criterion) {
    let device = DeviceSpec::default();
    let mut group = criterion.benchmark_group("replay/second pass");
    group.sample_size(10).measurement_time(Duration::from_secs(5));
    for word in TRACES_AGAIN {
        let file = TraceFile::find(word).expect("a bundled trace");
        let trace = LoadedTrace::open(file.path()).expect("a bundled trace is readable");
        let passes = Passes { trace: &trace, device: &device };
        group.throughput(Throughput::Elements(trace.steps().len() as u64));
        group.bench_function(BenchmarkId::from_parameter(word), |bencher| {
            let second = || {
                let passes = passes.on_concertina(PolicyName::Balanced, 2);
                let pass = passes.expect("the device is large enough")[1];
                pass.total - pass.in_driver
            };
            bencher.iter_custom(|times| (0..times).map(|_| second()).sum());
        });
    }
    group.finish();
}

criterion_group!(benches, replay, second_pass);
criterion_main!(benches);
