//! One malloc for everything, worked out by hand.
//!
//! Neighbours: `streams` has its rule for streams.

use concertina_baselines::{Baseline, Fixed, FixedConf, PoolBlock};
use concertina_emulator::{Emulator, EmulatorConfig};
use concertina_vmm::Call;

use crate::world::MIB;

struct Program {
    device: Emulator,
    allocator: Fixed<Emulator>,
}

impl Program {
    fn new(options: &str) -> Self {
        let config = EmulatorConfig::default().with_capacity(64 * MIB).unwrap();
        let device = Emulator::new(config).unwrap();
        let mut allocator = Fixed::new(device.clone(), options.parse().unwrap());
        allocator.add_stream(device.stream());
        Self { device, allocator }
    }

    fn a(&mut self, bytes: u64) -> PoolBlock {
        self.allocator.allocate(bytes, 0).unwrap()
    }

    fn is_refused(&mut self, bytes: u64) -> bool {
        self.allocator.allocate(bytes, 0).is_err_and(|error| error.to_string().starts_with("out of memory"))
    }
}

#[test]
fn the_first_request_takes_everything() {
    for (options, mib) in [("", 64), ("memory_fraction:0.5", 32), ("memory_mb:20", 20)] {
        let mut program = Program::new(options);
        assert_eq!(program.device.counts().of(Call::Malloc), 0);
        let _ = program.a(1);
        let _ = program.a(mib * MIB - 256);
        assert!(program.is_refused(1));
        assert_eq!(program.device.counts().of(Call::Malloc), 1);
        assert_eq!(program.device.counts().mapped_bytes, mib * MIB);
        assert_eq!(program.allocator.address_peak_bytes(), mib * MIB);
    }
    // More than there is: the request fails, and the next one tries again.
    let mut program = Program::new("memory_mb:65");
    assert!(program.is_refused(1) && program.is_refused(1));
}

#[test]
fn a_request_takes_the_smallest_hole_and_not_a_step_more_than_it_needs() {
    let mut program = Program::new("");
    // 10, 1, 5, 1 and 5 MiB from the start on; 42 behind them.
    let [ten, one, five, _, last] = [10, 1, 5, 1, 5].map(|mib| program.a(mib * MIB));
    let start = ten.address().get();
    program.allocator.free(ten).unwrap();
    program.allocator.free(five).unwrap();
    let block = program.a(4 * MIB + 1);
    assert_eq!(block.address().get() - start, 11 * MIB, "the hole of 5, not that of 10");
    let rest = program.a(MIB - 256);
    assert_eq!(rest.address().get() - start, 15 * MIB + 256, "what is left of it, to the last step");
    // The hole of 10 and the 1 behind it join, and 5 at the end with the 42 behind it.
    program.allocator.free(one).unwrap();
    let eleven = program.a(11 * MIB);
    assert_eq!(eleven.address().get(), start);
    let end = last.address().get();
    program.allocator.free(last).unwrap();
    assert_eq!(program.a(47 * MIB).address().get(), end);
    assert!(program.is_refused(1));
}

#[test]
fn options_read_back_as_they_are_written() {
    for words in ["", "memory_fraction:0.9", "memory_mb:4096"] {
        assert_eq!(words.parse::<FixedConf>().unwrap().to_string(), words);
    }
    assert_eq!("memory_fraction:1".parse::<FixedConf>().unwrap(), FixedConf::all());
    let said = |words: &str| words.parse::<FixedConf>().unwrap_err().to_string();
    assert_eq!(said("memory_mb:0"), "`memory_mb` is 1 MiB or more, not `0`");
    assert_eq!(said("fraction:1"), "no option `fraction`; there are: memory_fraction, memory_mb");
}
