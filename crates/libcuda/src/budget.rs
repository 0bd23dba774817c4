//! How many mappings the host can hold: each takes up to two of the kernel's memory areas, and a process without areas
//! left can't even allocate on its own heap.
//!
//! Main types: none. Neighbours: `memory` answers out of memory at the limit, `machine` tells the budget.

use std::fs;

/// Linux's default of `vm.max_map_count`, for when it can't be read.
const DEFAULT_AREAS: u64 = 65_530;
/// Areas left to the program: libraries, stacks of threads, its heap.
const SPARE_AREAS: u64 = 4_096;
/// A mapping, and the hole behind it.
const AREAS_PER_MAPPING: u64 = 2;
/// Mappings beyond the budget that a map is still allowed: the driver is known to say no at the set access that follows,
/// and a large request maps many pages before that.
pub(crate) const BEYOND_BUDGET: u64 = 1_024;

/// Most memory areas of one process of this host.
fn host_areas() -> u64 {
    let text = fs::read_to_string("/proc/sys/vm/max_map_count").unwrap_or_default();
    text.trim().parse().unwrap_or(DEFAULT_AREAS)
}

/// Most mappings that this host holds with pages behind them, some thousand areas before it is in danger.
pub(crate) fn host_budget() -> u64 {
    budget_of(host_areas())
}

fn budget_of(areas: u64) -> u64 {
    let usable = areas.saturating_sub(SPARE_AREAS.min(areas / 2));
    (usable / AREAS_PER_MAPPING).saturating_sub(BEYOND_BUDGET.min(usable / 8)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_leaves_areas_to_the_program() {
        for areas in [DEFAULT_AREAS, 262_144, 20_000] {
            let taken = (budget_of(areas) + BEYOND_BUDGET) * AREAS_PER_MAPPING;
            assert!(taken + SPARE_AREAS <= areas, "{areas} areas, {taken} taken");
            assert!(taken + SPARE_AREAS + 2 > areas, "{areas} areas, {taken} taken");
        }
        assert_eq!(budget_of(0), 1);
    }
}
