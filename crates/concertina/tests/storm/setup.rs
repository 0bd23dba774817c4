//! The device and the allocator of a program, drawn by its seed.
//!
//! Main type: [`Setup`]. Neighbours: `program` has what is done with them.

use concertina::{Config, CrossStream, HostWait, Policy, StaleRule};
use concertina_emulator::{Detection, EmulatorConfig, EventCompletion};
use concertina_vmm::MALLOC_PAGE_BYTES;

use crate::dice::Dice;

/// Sizes are in pages but for the page.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) page_bytes: u64,
    pub(crate) device: u64,
    pub(crate) completion: EventCompletion,
    pub(crate) policy: Policy,
    pub(crate) cross_stream: CrossStream,
    /// Whether streams may have rules of their own.
    pub(crate) own_rules: bool,
    pub(crate) host_wait: HostWait,
    pub(crate) stale: StaleRule,
    pub(crate) limit: Option<u64>,
    pub(crate) reservation: Option<u64>,
    /// All addresses of the device.
    pub(crate) addresses: Option<u64>,
    pub(crate) max_mappings: Option<u64>,
    pub(crate) unmap_spans_mappings: bool,
    pub(crate) virtual_memory: bool,
    /// Live blocks from which on a heap defers frees.
    pub(crate) deferred_from: Option<u64>,
}

impl Setup {
    pub(crate) fn draw(dice: &mut Dice) -> Self {
        use CrossStream::{Completed, DeviceWait, Never};
        let virtual_memory = !dice.once_in(10);
        let page_bytes = dice.one_of(&[64 << 10, 2 << 20, 2 << 20, 32 << 20]);
        // Half of the devices run in an order of their own, by seed.
        let completion = match dice.below(10) {
            0 => EventCompletion::AtOnce,
            1 => EventCompletion::AfterOperations(dice.between(1, 10)),
            2 => EventCompletion::AfterOperations(300),
            3 => EventCompletion::ByHand,
            4 => EventCompletion::ByClock,
            _ => EventCompletion::BySeed(dice.below(u64::MAX)),
        };
        let device = dice.between(8, 48);
        let limit = dice.sometimes(4, 4, 48);
        // Room for the mappings of all memory and hardly any more, or for whatever it may be.
        let max_mappings = match dice.below(6) {
            0 => Some(limit.unwrap_or(device).min(device) + dice.below(4)),
            1 => Some(dice.between(8, 120)),
            _ => None,
        };
        Self {
            page_bytes: if virtual_memory { page_bytes } else { MALLOC_PAGE_BYTES },
            device,
            completion,
            policy: dice.one_of(&[Policy::Lean, Policy::Balanced]),
            cross_stream: dice.one_of(&[DeviceWait, DeviceWait, DeviceWait, DeviceWait, Completed, Never]),
            own_rules: dice.once_in(3),
            host_wait: dice.one_of(&[HostWait::Never, HostWait::LastResort]),
            stale: dice.one_of(&[StaleRule::Keep, StaleRule::Keep, StaleRule::Eager]),
            limit,
            reservation: dice.sometimes(2, 1, 40),
            addresses: dice.sometimes(6, 60, 300),
            max_mappings,
            unmap_spans_mappings: !dice.once_in(5),
            virtual_memory,
            deferred_from: dice.sometimes(2, 0, 6),
        }
    }

    pub(crate) fn emulator(&self) -> EmulatorConfig {
        let plain = EmulatorConfig::default();
        EmulatorConfig {
            capacity_bytes: self.device * self.page_bytes,
            granularity_bytes: self.page_bytes,
            address_space_bytes: self
                .addresses
                .map_or(plain.address_space_bytes, |pages| pages * self.page_bytes),
            max_mappings: self.max_mappings,
            event_completion: self.completion,
            detection: Detection::On,
            virtual_memory: self.virtual_memory,
            unmap_spans_mappings: self.unmap_spans_mappings,
            ..plain
        }
    }

    pub(crate) fn config(&self) -> Config {
        let mut config = Config::builder()
            .policy(self.policy)
            .cross_stream(self.cross_stream)
            .host_wait(self.host_wait)
            .stale(self.stale);
        if let Some(pages) = self.limit {
            config = config.limit_bytes(pages * self.page_bytes);
        }
        if let Some(pages) = self.reservation {
            config = config.reservation_bytes(pages * self.page_bytes);
        }
        if let Some(blocks) = self.deferred_from {
            config = config.deferred_from_blocks(blocks);
        }
        config.build()
    }

    /// Most bytes that the allocator may ever have.
    pub(crate) fn most_bytes(&self) -> u64 {
        self.limit.map_or(self.device, |limit| limit.min(self.device)) * self.page_bytes
    }

    /// Whether memory is all that can run out, and any stream may be made to wait for any other.
    pub(crate) fn serves_all_that_is_free(&self) -> bool {
        self.serves_all_that_is_done() && self.max_mappings.is_none()
    }

    /// The same once all work is done: then the budget need only have room for the mappings of all memory.
    pub(crate) fn serves_all_that_is_done(&self) -> bool {
        self.virtual_memory
            && self.cross_stream == CrossStream::DeviceWait
            && !self.own_rules
            && self.addresses.is_none()
            && self.max_mappings.is_none_or(|most| most >= self.most_bytes() / self.page_bytes)
    }
}
