//! What each driver call costs on the virtual clock.
//!
//! Main types: [`CostTable`], [`CallCost`]. Neighbours: `cost_file` reads a table from a file, `device` charges it.
//! Every constant's source and trust mark is below and in the table of `docs/emulator.md`.

use concertina_vmm::Call;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// A frame or mapping of up to this many bytes costs the base; the slope begins here. 2 MiB: the page of the profiles.
const BASE_BYTES: u64 = 2 * MIB;

/// What calls of one kind cost, in nanoseconds of the host. Integers, so that sums are exact and repeat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallCost {
    /// The call on one frame or mapping of at most 2 MiB, or on none.
    pub base_ns: u64,
    /// For each GiB beyond 2 MiB of a frame or mapping that the call is about (of a reserve or a malloc: of its size).
    pub per_gib_ns: u64,
    /// For each mapping that the call covers after its first.
    pub per_mapping_ns: u64,
}

impl CallCost {
    /// The same for any size.
    pub const fn flat(base_ns: u64) -> Self {
        Self { base_ns, per_gib_ns: 0, per_mapping_ns: 0 }
    }

    /// The line through the cost at 2 MiB and the cost at `large_bytes` (above 2 MiB), the slope rounded up.
    const fn line(base_ns: u64, large_bytes: u64, large_ns: u64) -> Self {
        let per_gib_ns = ((large_ns - base_ns) * GIB).div_ceil(large_bytes - BASE_BYTES);
        Self { base_ns, per_gib_ns, per_mapping_ns: 0 }
    }

    const fn per_mapping(mut self, ns: u64) -> Self {
        self.per_mapping_ns = ns;
        self
    }

    /// The cost of a call about one frame, mapping, reservation or malloc of so many bytes.
    pub fn of_bytes(&self, bytes: u64) -> u64 {
        self.base_ns.saturating_add(self.beyond_base(bytes))
    }

    /// What one mapping of so many bytes adds to a call that covers several: the slope of each, and for all but the
    /// first the fixed part.
    pub(crate) fn beyond_base(&self, bytes: u64) -> u64 {
        if bytes <= BASE_BYTES {
            return 0;
        }
        let ns = (u128::from(bytes - BASE_BYTES) * u128::from(self.per_gib_ns)) >> GIB.trailing_zeros();
        u64::try_from(ns).unwrap_or(u64::MAX)
    }

    /// The cost of one call that covers mappings of these sizes, in bytes.
    pub fn of_mappings(&self, sizes_bytes: impl IntoIterator<Item = u64>) -> u64 {
        let mut count = 0_u64;
        let mut ns = self.base_ns;
        for bytes in sizes_bytes {
            ns = ns.saturating_add(self.beyond_base(bytes));
            count += 1;
        }
        ns.saturating_add(self.per_mapping_ns.saturating_mul(count.saturating_sub(1)))
    }
}

/// What every call costs on one kind of device, as the host sees it. All figures that come from it are modelled.
///
/// No table charges for time that the host spends waiting for work on the device: traces carry no kernels. Waits are
/// counted instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CostTable {
    /// The name that output shows.
    pub name: String,
    /// A `malloc` of less than a granule, served from a granule that the driver shares out: nanoseconds.
    pub small_malloc_ns: u64,
    pub(crate) calls: [CallCost; Call::COUNT],
}

impl CostTable {
    /// A table in which nothing costs anything.
    pub fn free_of_charge() -> Self {
        Self { name: "free".into(), small_malloc_ns: 0, calls: [CallCost::default(); Call::COUNT] }
    }

    /// What calls of one kind cost.
    pub fn of(&self, call: Call) -> &CallCost {
        &self.calls[call as usize]
    }

    /// The same table with another cost of one kind.
    #[must_use]
    pub fn with(mut self, call: Call, cost: CallCost) -> Self {
        self.calls[call as usize] = cost;
        self
    }

    /// An H100 of 80 GB.
    ///
    /// The costs of create, map, set access, unmap and release come from the one public profile of such a device at
    /// work: kvcached PR 331, nsys on an H100 80GB serving Qwen3-0.6B, totals divided by calls, at 2 MiB and at 112 MiB
    /// (a size inferred from its code); a line between and beyond. The rest is weaker, as marked.
    ///
    /// | call | ns | trust |
    /// | --- | --- | --- |
    /// | create | 28,500 at 2 MiB, 55,000 at 112 MiB | good; fair |
    /// | map | 3,300; 5,000 | good |
    /// | set access | 60,000; 80,000; and 1,000 for each further mapping | good; fair; a guess |
    /// | unmap | 42,000; 60,000; and 5,000 for each further mapping | good; fair; a guess (1 to 10 µs) |
    /// | release | 23,400; 67,000 | good; fair |
    /// | reserve | 10,000 | fair: 2 to 20 µs in vAttention and kvcached |
    /// | unreserve | 2,000 | weak: vAttention, recalled |
    /// | memory info | 8,000 | good: 6 to 12 µs in kvcached and sglang issue 25225 |
    /// | malloc under a granule | 5,000 | weak: 2 to 10 µs |
    /// | malloc | 100,000 at 2 MiB, 1,000,000 at 1 GiB | weak: 100 to 300 µs and 0.5 to 1.5 ms |
    /// | free | 14,000, and the wait, which is counted and not charged | fair: Cytnx issue 850 |
    /// | event record | 1,000 | good: rmm issue 448, cudarc issue 335 |
    /// | other calls on events and streams | 300 to 1,000 | guesses |
    ///
    /// Where a source gives a range, malloc and free take its low end, so that a comparison does not flatter the
    /// calls on virtual memory.
    pub fn h100() -> Self {
        let large = 112 * MIB;
        Self { name: "h100".into(), small_malloc_ns: 5_000, ..Self::free_of_charge() }
            .with(Call::Reserve, CallCost::flat(10_000))
            .with(Call::Unreserve, CallCost::flat(2_000))
            .with(Call::Create, CallCost::line(28_500, large, 55_000))
            .with(Call::Release, CallCost::line(23_400, large, 67_000))
            .with(Call::Map, CallCost::line(3_300, large, 5_000))
            .with(Call::Unmap, CallCost::line(42_000, large, 60_000).per_mapping(5_000))
            .with(Call::SetAccess, CallCost::line(60_000, large, 80_000).per_mapping(1_000))
            .with(Call::MemoryInfo, CallCost::flat(8_000))
            .with(Call::EventCreate, CallCost::flat(700))
            .with(Call::EventRecord, CallCost::flat(1_000))
            .with(Call::EventQuery, CallCost::flat(500))
            .with(Call::EventSynchronize, CallCost::flat(1_000))
            .with(Call::StreamWait, CallCost::flat(700))
            .with(Call::CaptureStatus, CallCost::flat(300))
            .with(Call::Malloc, CallCost::line(100_000, GIB, 1_000_000))
            .with(Call::Free, CallCost::flat(14_000))
    }

    /// An A100 of 80 GB. As [`CostTable::h100`] but for these; slopes are the H100's, since no public profile of an
    /// A100 has a second size (a guess).
    ///
    /// | call | ns | trust |
    /// | --- | --- | --- |
    /// | create | 193,000 | one witness, an outlier: kvcached bench_vmm, p50 195 µs; vAttention has 29 µs, recalled |
    /// | map | 1,450 | good: kvcached bench_vmm |
    /// | set access | 36,000; and 1,000 for each further mapping | good: kvcached bench_vmm; a guess |
    /// | unmap | 25,600; and 5,000 for each further mapping | good: kvcached bench_vmm; a guess |
    /// | release | 23,000 | fair: vAttention, recalled |
    /// | reserve | 19,000 | good: kvcached bench_vmm, 8 GB |
    pub fn a100() -> Self {
        let mut table = Self { name: "a100".into(), ..Self::h100() };
        let witnessed = [
            (Call::Reserve, 19_000),
            (Call::Create, 193_000),
            (Call::Release, 23_000),
            (Call::Map, 1_450),
            (Call::Unmap, 25_600),
            (Call::SetAccess, 36_000),
        ];
        for (call, base_ns) in witnessed {
            table.calls[call as usize].base_ns = base_ns;
        }
        table
    }
}
