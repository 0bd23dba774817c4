//! The way of a request: whose freed memory it may have, in which order it asks, and when more is taken.
//!
//! Neighbours: `ranges` has what is free, `grow` takes more.
//!
//! Source: CUDA Programming Guide, "Stream-Ordered Memory Allocator", its sections on reuse policies and on what a
//! synchronisation does. Memory freed on a stream serves that stream at once. Before more is taken of the system, the pool
//! looks for memory freed on streams that the program has ordered before this one, and for memory whose free it sees done;
//! if the system has no more, for memory that it can have by a wait of its own.

use std::collections::BTreeMap;

use concertina_vmm::{Driver, DriverError, StreamId, Use, Uses};

use super::DriverPool;
use super::ranges::{Home, State};

impl<D: Driver> DriverPool<D> {
    /// A free range of at least `bytes` that work queued on `stream` from here on may use: its address. Nothing if memory
    /// is short.
    ///
    /// # Errors
    /// What the driver says.
    pub(crate) fn find(&mut self, stream: StreamId, bytes: u64) -> Result<Option<u64>, DriverError> {
        if let Some(address) = self.own(stream, bytes) {
            return Ok(Some(address));
        }
        if self.conf.opportunistic {
            self.look()?;
        }
        if let Some(address) = self.ordered(stream, bytes) {
            return self.put_together(stream, address, bytes);
        }
        if self.grow(bytes)? {
            return Ok(self.own(stream, bytes));
        }
        if self.conf.internal_dependencies
            && let Some(address) = self.ranges.best_run(bytes, |_| true)
        {
            return self.put_together(stream, address, bytes);
        }
        Ok(None)
    }

    /// The best of what was freed on the stream itself and of what is free for everyone.
    fn own(&self, stream: StreamId, bytes: u64) -> Option<u64> {
        let homes = [Home::of(stream), Home::DONE];
        homes.iter().filter_map(|&home| self.ranges.best_fit(home, bytes)).min().map(|(_, address)| address)
    }

    /// The best run of what comes before work queued on the stream from here on: its own, what is free for everyone,
    /// and, as far as event dependencies are followed, what was freed on other streams before a point that the program
    /// made this one wait for.
    fn ordered(&self, stream: StreamId, bytes: u64) -> Option<u64> {
        self.fences.with_order(stream, |order| {
            self.ranges.best_run(bytes, |uses| match uses {
                [] => true,
                [only] if only.stream == stream => true,
                [only] => self.conf.follow_events && order.is_before(*only),
                _ => false,
            })
        })
    }

    /// Makes one free range of what a block of `bytes` reaches into, behind waits for whatever it must come after: its
    /// address.
    fn put_together(
        &mut self,
        stream: StreamId,
        address: u64,
        bytes: u64,
    ) -> Result<Option<u64>, DriverError> {
        let reached = self.ranges.reached(address, bytes);
        if reached.len() == 1 && self.ranges.uses(address).is_empty() {
            return Ok(Some(address));
        }
        for &(at, _) in &reached {
            self.fences.wait(stream, self.ranges.uses(at))?;
        }
        let now: Uses = self.fences.now(stream).into_iter().collect();
        for (at, bytes) in reached {
            self.ranges.recast(at, bytes, State::Free(now.clone()));
        }
        Ok(Some(address))
    }

    /// The free ranges that are not for everyone: where they begin.
    fn waiting(&self) -> Vec<u64> {
        let homes = self.streams.iter().map(|clock| Home::of(clock.stream())).chain([Home::SEVERAL]);
        homes.flat_map(|home| self.ranges.of(home, 0)).map(|(_, address)| address).collect()
    }

    /// The uses that they must come after: of each stream the latest.
    fn awaited(&self) -> Vec<Use> {
        let mut latest: BTreeMap<StreamId, u64> = BTreeMap::new();
        for use_ in self.waiting().into_iter().flat_map(|address| self.ranges.uses(address)) {
            let tick = latest.entry(use_.stream).or_default();
            *tick = use_.tick.max(*tick);
        }
        latest.into_iter().map(|(stream, tick)| Use { stream, tick }).collect()
    }

    /// Opportunistic: looks which frees are done.
    fn look(&mut self) -> Result<(), DriverError> {
        self.awaited().into_iter().try_for_each(|use_| self.fences.look_at(use_))?;
        self.settle();
        Ok(())
    }

    /// What was freed and is seen done is free for everyone.
    pub(crate) fn settle(&mut self) {
        let mut done = self.waiting();
        done.retain(|&address| self.ranges.uses(address).iter().all(|&use_| self.fences.is_done(use_)));
        let done: Vec<_> = done.into_iter().map(|address| (address, self.ranges.bytes(address))).collect();
        for (address, bytes) in done {
            self.ranges.recast(address, bytes, State::Free(Uses::new()));
        }
    }

    /// Makes the host wait for all that something free waits for.
    pub(crate) fn wait_for_all(&mut self) -> Result<(), DriverError> {
        self.awaited().into_iter().try_for_each(|use_| self.fences.host_wait_for(use_))?;
        self.settle();
        Ok(())
    }
}
