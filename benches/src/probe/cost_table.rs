//! The cost table that comes nearest to what was measured.
//!
//! Main types: none; functions on [`ProbeReport`]. Neighbours: the emulator charges by it; `docs/emulator.md` has the format.

use std::fmt::Write as _;

use concertina_emulator::{CallCost, CostTable};
use concertina_vmm::Call;

use super::report::{Load, ProbeReport, Timing};

const GIB: u64 = 1 << 30;

/// Largest cost that a table may hold, in nanoseconds.
const MOST_NS: u64 = 1_000_000_000_000;

/// Mallocs below this many bytes are small: of less than a page.
const SMALL: u64 = 2 << 20;

impl ProbeReport {
    /// The cost table of this name. Of idle calls, for each kind: the median at the least size as the base (of mallocs: at the
    /// least of 2 MiB or more), the line from there to the largest size as the slope, and what the fit says of one more
    /// mapping. A kind that was not measured costs nothing.
    pub fn cost_table(&self, name: &str) -> CostTable {
        let mut table = CostTable::free_of_charge();
        name.clone_into(&mut table.name);
        let small = self.idle(Call::Malloc).filter(|timing| timing.bytes < SMALL);
        table.small_malloc_ns =
            small.min_by_key(|timing| timing.bytes).map_or(0, |timing| timing.median_ns.min(MOST_NS));
        Call::ALL.iter().fold(table, |table, &call| table.with(call, self.cost_of(call)))
    }

    /// Idle single calls of one kind, about one thing each.
    fn idle(&self, call: Call) -> impl Iterator<Item = &Timing> {
        self.timings.iter().filter(move |timing| {
            timing.call == call.name()
                && timing.load == Load::Idle
                && (timing.mappings, timing.driver_calls) == (1, 1)
        })
    }

    fn cost_of(&self, call: Call) -> CallCost {
        let of_call = || {
            let small = move |timing: &&Timing| call == Call::Malloc && timing.bytes < SMALL;
            self.idle(call).filter(move |timing| !small(timing))
        };
        let Some(base) = of_call().min_by_key(|timing| timing.bytes) else { return CallCost::default() };
        let largest = of_call().max_by_key(|timing| timing.bytes).filter(|timing| timing.bytes > base.bytes);
        let per_gib_ns = largest.map_or(0, |largest| {
            let (ns, bytes) = (largest.median_ns.saturating_sub(base.median_ns), largest.bytes - base.bytes);
            let slope = u128::from(ns) * u128::from(GIB) / u128::from(bytes);
            u64::try_from(slope).unwrap_or(u64::MAX)
        });
        let fit = self.fits.iter().find(|fit| fit.call == call.name() && fit.load == Load::Idle);
        // Below 0, or no number, is 0.
        let per_mapping_ns = fit.map_or(0, |fit| fit.per_mapping_ns.round() as u64);
        CallCost {
            base_ns: base.median_ns.min(MOST_NS),
            per_gib_ns: per_gib_ns.min(MOST_NS),
            per_mapping_ns: per_mapping_ns.min(MOST_NS),
        }
    }
}

/// The table as TOML that [`CostTable::from_toml`] reads, below comments of these lines.
pub fn to_toml(table: &CostTable, comments: &[String]) -> String {
    let mut text = String::new();
    for line in comments.iter().flat_map(|comment| comment.lines()) {
        let _ = writeln!(text, "# {line}");
    }
    // Names may have quotes; the text form of Rust escapes them as TOML does.
    let _ = writeln!(text, "name = {:?}\nsmall_malloc_ns = {}", table.name, table.small_malloc_ns);
    for &call in Call::ALL {
        let CallCost { base_ns, per_gib_ns, per_mapping_ns } = table.of(call);
        let _ = writeln!(text, "\n[{}]\nbase_ns = {base_ns}", call.name());
        let _ = writeln!(text, "per_gib_ns = {per_gib_ns}\nper_mapping_ns = {per_mapping_ns}");
    }
    text
}

#[cfg(test)]
mod tests {
    use concertina_emulator::{CallCost, CostTable};
    use concertina_vmm::Call;

    use super::to_toml;
    use crate::probe::report::{Fit, Load, ProbeReport, Timing};

    fn timing(call: Call, bytes: u64, mappings: u64, median_ns: u64) -> Timing {
        let (load, driver_calls) = (Load::Idle, 1);
        let (p10_ns, p90_ns, least_ns) = (median_ns, median_ns, median_ns);
        let call = call.name();
        Timing { call, load, bytes, mappings, driver_calls, repeats: 1, median_ns, p10_ns, p90_ns, least_ns }
    }

    #[test]
    fn a_table_is_the_line_through_the_ends() {
        let under = Timing { load: Load::UnderKernel, ..timing(Call::Unmap, 1 << 29, 1, 77) };
        let several = Timing { driver_calls: 4, ..timing(Call::Unmap, 1 << 29, 1, 88) };
        let timings = vec![
            under,
            several,
            timing(Call::Unmap, 1 << 30, 1, 5_000),
            timing(Call::Unmap, 1 << 29, 1, 1_000),
            timing(Call::Unmap, 1 << 29, 5, 3_000),
            timing(Call::Malloc, 4 << 10, 1, 70),
            timing(Call::Malloc, 256 << 10, 1, 80),
            timing(Call::Malloc, 1 << 21, 1, 900),
            timing(Call::Map, 1 << 21, 1, u64::MAX),
        ];
        let fit =
            Fit { call: "unmap", load: Load::Idle, bytes: 1 << 29, base_ns: 0.0, per_mapping_ns: 499.6 };
        let falling = Fit { call: "map", per_mapping_ns: -3.0, ..fit.clone() };
        let report = ProbeReport { timings, fits: vec![falling, fit], ..ProbeReport::default() };
        let table = report.cost_table("a \"GPU\"");
        // 4,000 ns for half a GiB.
        let unmap = CallCost { base_ns: 1_000, per_gib_ns: 8_000, per_mapping_ns: 500 };
        assert_eq!((*table.of(Call::Unmap), *table.of(Call::Malloc)), (unmap, CallCost::flat(900)));
        assert_eq!((table.small_malloc_ns, *table.of(Call::Free)), (70, CallCost::flat(0)));
        assert_eq!(*table.of(Call::Map), CallCost::flat(1_000_000_000_000));
        let text = to_toml(&table, &["one\ntwo".to_owned()]);
        assert!(text.starts_with("# one\n# two\n"), "{text}");
        assert_eq!(CostTable::from_toml(&text).expect("what is written is read"), table);
    }
}
